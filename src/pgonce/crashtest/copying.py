"""The state before a run, copied from a database that is there: dumped and restored elsewhere, never written."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgonce.crashtest.base import Base, run_psql, sealed, settings_of
from pgonce.crashtest.limits import COPY_BYTES_MAX, COPY_S_MAX
from pgonce.errors import ConfigurationError, Unreachable
from pgonce.server import ScratchServer

# The dump asks the original for nothing but reading, and the server holds it to that.
READ_ONLY = "-c default_transaction_read_only=on"

_PRIVILEGES = """
select format('grant %%s on database %%I to %%s', a.privilege_type, coalesce(%s::text, d.datname),
              case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end)
from pg_database as d cross join aclexplode(d.datacl) as a
where d.datname = current_database() and d.datacl is not null
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Original:
    """A database to be copied: how to reach it, and what its clones have to be like."""

    dsn: str
    database: str
    user: str
    owner: str
    major: int
    locale: str
    bytes: int
    settings: tuple[str, ...]
    environment: Mapping[str, str]


def privileges_of(connection: psycopg.Connection, *, target: str | None = None) -> list[str]:
    """Return the statements that give a database (``target``, if named) the privileges that the current one has."""
    found = [str(one[0]) for one in connection.execute(_PRIVILEGES.encode(), (target,))]
    if found:
        name = sql.Identifier(target or connection.info.dbname)
        found.insert(0, sql.SQL("revoke all on database {} from public").format(name).as_string())
    return found


def look_at(dsn: str, database: str | None) -> Original:
    """Read what a copy needs. Raises Unreachable, or ConfigurationError for one that is too large."""
    target = make_conninfo(dsn, **({"dbname": database} if database else {}))
    try:
        with psycopg.connect(target, options=READ_ONLY, application_name="pgonce crashtest") as connection:
            row = connection.execute(
                "select current_database(), current_user, pg_get_userbyid(datdba), pg_database_size(oid), datcollate,"
                " current_setting('server_version_num')::integer, pg_encoding_to_char(encoding) from pg_database"
                " where datname = current_database()"
            ).fetchone()
            assert row is not None, "the current database is in its list"
            name, user, owner, size, locale, version, encoding = row
            settings = settings_of(connection, name)
            privileges = privileges_of(connection)
    except psycopg.OperationalError as error:
        raise Unreachable(f"the database to be copied cannot be reached: {str(error).strip()}") from error
    if size > COPY_BYTES_MAX:
        raise ConfigurationError(
            f"the database {name!r} has {size >> 20:,} MB, more than the {COPY_BYTES_MAX >> 20:,} MB that are copied; "
            "make a smaller one with the rows that matter, or give the state with --setup"
        )
    if encoding != "UTF8":
        raise ConfigurationError(f"the database {name!r} is encoded in {encoding}; only UTF8 is copied")
    told = (*settings, *privileges)
    return Original(target, name, user, owner, version // 10_000, locale, size, told, dict(os.environ))


def from_copy(server: ScratchServer, original: Original, scripts: Sequence[Path] = ()) -> Base:
    """Make the pristine database as a copy. Raises ConfigurationError if the copy fails."""
    if original.major > server.version[0]:
        raise ConfigurationError(
            f"the database runs on PostgreSQL {original.major}, the scratch server on {server.version[0]}: set "
            f"PGONCE_PG_BIN to the programs of PostgreSQL {original.major}"
        )
    folder = server.folder / "copy"
    folder.mkdir(mode=0o700)
    _copy_roles(server, original, folder / "roles.sql")
    base = Base(server, original.database, original.user, is_copy=True)
    _create(base, original)
    dump = folder / "database.dump"
    environment = {**original.environment, "PGOPTIONS": READ_ONLY}
    checked([server.program("pg_dump"), "-Fc", "-Z0", "-f", dump, "-d", original.dsn], environment, "be dumped")
    restore: list[Path | str] = [server.program("pg_restore"), "--exit-on-error", "-d", base.dsn(base.work), dump]
    checked(restore, _bare(), "be restored on the scratch server")
    dump.unlink()
    for script in scripts:
        run_psql(base, script)
    base = sealed(base)
    with base.connected(base.pristine) as connection:
        connection.execute("analyze")
    owner = sql.SQL("alter database {} owner to {}").format(sql.Identifier(base.work), sql.Identifier(original.owner))
    return dataclasses.replace(base, settings=(owner.as_string(), *original.settings))


def _create(base: Base, original: Original) -> None:
    """Make the empty database, in the original's order of texts where this machine knows it."""
    name = sql.Identifier(base.work)
    with base.connected("postgres") as connection:
        try:
            connection.execute(
                sql.SQL("create database {} template template0 encoding 'UTF8' locale_provider libc locale {}").format(
                    name, sql.Literal(original.locale)
                )
            )
        except psycopg.Error:
            connection.execute(sql.SQL("create database {} template template0").format(name))


def _copy_roles(server: ScratchServer, original: Original, path: Path) -> None:
    environment = {**original.environment, "PGOPTIONS": READ_ONLY}
    argv: list[Path | str] = [
        server.program("pg_dumpall"),
        "--roles-only",
        "--no-role-passwords",
        "-f",
        path,
        "-d",
        original.dsn,
    ]
    checked(argv, environment, "have its roles read")
    ours = str(conninfo_to_dict(server.dsn)["user"])
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line for line in lines if line != f"CREATE ROLE {ours};") + "\n", encoding="utf-8")
    checked([server.program("psql"), "-X", "-q", "-d", server.dsn, "-f", path], _bare(), "have its roles copied")
    with psycopg.connect(server.dsn, autocommit=True) as connection:  # a role of this name may have taken it away
        connection.execute(sql.SQL("alter role {} superuser login").format(sql.Identifier(ours)))


def _bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def checked(argv: list[Path | str], environment: Mapping[str, str], what: str) -> None:
    """Run a program of PostgreSQL. Raises ConfigurationError: the database could not ``what``."""
    try:
        done = subprocess.run(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=COPY_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"the database could not {what} within {COPY_S_MAX:.0f} s") from error
    if done.returncode != 0:
        raise ConfigurationError(f"the database could not {what}: {done.stderr.strip()[-2000:]}")
