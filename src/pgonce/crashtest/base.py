"""The database before the program runs: made once on a scratch server, cloned before each point."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgonce.crashtest import dropping
from pgonce.crashtest.limits import BACKENDS_S_MAX, SETUP_S_MAX
from pgonce.errors import ConfigurationError, Inconclusive
from pgonce.server import ScratchServer
from pgonce.server.place import clean_environment

# Where no database is copied, the program finds one of this name; any other name it asks for leads there too.
DATABASE = "crashtest"

APPLICATION = "pgonce crashtest"

# What the server says, in the words of any language that it speaks here, when there is no room for the state.
NO_SPACE = "No space left on device"

# Numbers that a second clean run finds taken: enough that the rows of a small state do not have them.
NUMBERS_SKIPPED_MIN = 1_009

_SEQUENCES = """
select c.oid::regclass::text
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relkind = 'S' and c.relpersistence <> 't' and n.nspname !~ '^(pg_|information_schema$)'
order by c.oid
"""

# Values are told in the same words, whatever the database's own settings are; a row that a policy would hide from the
# role that compares is an error, never a row less; and nothing that is set for the database or the role hinders us.
PLAIN = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex -c extra_float_digits=1"
    " -c row_security=off -c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0"
    " -c default_transaction_read_only=off"
)

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "autovacuum": "off",
    "max_wal_size": "128MB",
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
}
"""The server is ended, never the machine under it, so what was written to the operating system is not lost."""


class Ground(Protocol):
    """What the crash test needs of the server that it works on; a scratch server has it."""

    @property
    def dsn(self) -> str:
        """Return the direct connection string, closed against the environment."""

    @property
    def folder(self) -> Path:
        """Return a folder that vanishes with this process."""

    @property
    def version(self) -> tuple[int, int]:
        """Return (major, minor)."""

    def program(self, name: str) -> Path:
        """Return the path of a program that came with PostgreSQL, for instance ``psql``."""

    def crash(self) -> None:
        """End the server at once, as a power cut would."""

    def start(self) -> None:
        """Start it again."""


@dataclass(frozen=True, slots=True)
class Base:
    """A pristine database and the names of its clones, all on one server.

    ``user`` is who the program is unless it names one of ``roles``. ``is_copy``: names mean what they mean in the
    original, so a login is passed on as it is. ``desk`` is a database to work from on whole databases. On a server that
    is not ours, ``known_as`` is the one name by which the program gets in, and ``password`` the one that it sends.
    """

    server: Ground
    work: str
    user: str
    settings: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    is_copy: bool = False
    desk: str = "postgres"
    known_as: str = ""
    password: str = dataclasses.field(default="", repr=False)
    notes: tuple[str, ...] = ()
    _standing: list[psycopg.Connection] = dataclasses.field(default_factory=list, compare=False)

    @property
    def pristine(self) -> str:
        """Return the name of the database that clones are made from."""
        return f"{self.work[:40]}__pristine"

    @property
    def clean(self) -> str:
        """Return the name of the database as a clean run left it."""
        return f"{self.work[:40]}__clean"

    @property
    def upstream(self) -> str | tuple[str, int]:
        """Return where the server listens: the path of its Unix socket, or host and port."""
        given = conninfo_to_dict(self.server.dsn)
        host = str(given.get("hostaddr") or given["host"])
        return f"{host}/.s.PGSQL.{given['port']}" if host.startswith("/") else (host, int(str(given["port"])))

    def dsn(self, database: str) -> str:
        """Return the direct connection string of a database, which does not lead through the proxy."""
        return make_conninfo(self.server.dsn, dbname=database, application_name=APPLICATION, options=PLAIN)

    @contextlib.contextmanager
    def connected(self, database: str) -> Iterator[psycopg.Connection]:
        """Connect directly, in autocommit."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            yield connection

    @property
    def admin(self) -> psycopg.Connection:
        """Return the connection that stands by for work on whole databases."""
        if not self._standing:
            self._standing.append(psycopg.connect(self.dsn(self.desk), autocommit=True))
        return self._standing[0]

    def close(self) -> None:
        """Close the connection that stands by; the next use opens another. Safe to re-run: yes."""
        while self._standing:
            self._standing.pop().close()

    def crash(self) -> None:
        """Crash the server and let it recover."""
        self.close()
        self.server.crash()
        self.server.start()

    def reset(self) -> None:
        """Make the working database as it was before the program ever ran."""
        self._drop(self.work)
        self.admin.execute(clone_sql(self.work, self.pristine))
        for statement in self.settings:
            self.admin.execute(statement.encode())

    def skip_numbers(self) -> None:
        """Take some numbers from every sequence of the working database, as runs do that are rolled back.

        Each sequence skips another count, so that no two columns agree by chance. One that has none left stays.
        """
        with self.connected(self.work) as connection:
            for count, (name,) in enumerate(connection.execute(_SEQUENCES).fetchall(), start=NUMBERS_SKIPPED_MIN):
                with contextlib.suppress(psycopg.Error):
                    connection.execute("select nextval(%s::regclass) from generate_series(1, %s)", (name, count))

    def keep_as_clean(self) -> None:
        """Put the working database aside as what a clean run leaves; it is gone under its own name."""
        self._drop(self.clean)
        self.admin.execute(
            sql.SQL("alter database {} rename to {}").format(sql.Identifier(self.work), sql.Identifier(self.clean))
        )

    def wait_for_backends(self) -> int:
        """Wait until no backend of the program is left, and end those that stay; return how many had to be ended."""
        until = time.monotonic() + BACKENDS_S_MAX
        while self._backends():
            if time.monotonic() > until:
                return self._end_backends()
            time.sleep(0.002)
        return 0

    def prepared_transactions(self) -> list[str]:
        """Name the prepared transactions that nobody has ended."""
        rows = self.admin.execute("select gid from pg_prepared_xacts where database = %s", (self.work,))
        return [str(row[0]) for row in rows]

    def exists(self) -> bool:
        """Say whether the working database is still there: a program may drop it."""
        return self.admin.execute("select from pg_database where datname = %s", (self.work,)).fetchone() is not None

    def bytes(self) -> int:
        """Return the size of the pristine database."""
        row = self.admin.execute("select pg_database_size(%s)", (self.pristine,)).fetchone()
        return int(row[0]) if row else 0

    def _drop(self, name: str) -> None:
        dropping.drop(self.admin, name, dsn=self.dsn(self.desk))

    def _backends(self) -> int:
        return _count(self.admin, f"select count(*) {_BACKENDS}", self.work)

    def _end_backends(self) -> int:
        ended = _count(self.admin, f"select count(pg_terminate_backend(pid, 5000)) {_BACKENDS}", self.work)
        if self._backends():
            raise Inconclusive("backends of the program's first run do not end, so it cannot be run again cleanly")
        return ended


def from_setup(server: ScratchServer, scripts: Sequence[Path]) -> Base:
    """Make the pristine database by running SQL files with psql. Raises ConfigurationError if one fails."""
    user = str(conninfo_to_dict(server.dsn)["user"])
    base = Base(server, DATABASE, user)
    with base.connected("postgres") as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    for script in scripts:
        run_psql(base, script)
    return sealed(base)


def sealed(base: Base) -> Base:
    """Put the working database aside as the pristine one; its settings by ALTER DATABASE are kept for the clones."""
    with base.connected("postgres") as connection:
        settings = settings_of(connection, base.work)
        connection.execute(
            sql.SQL("alter database {} rename to {}").format(sql.Identifier(base.work), sql.Identifier(base.pristine))
        )
        roles = frozenset(row[0] for row in connection.execute("select rolname from pg_roles where rolcanlogin"))
    return dataclasses.replace(base, settings=tuple(settings), roles=roles)


def settings_of(connection: psycopg.Connection, database: str, *, target: str | None = None) -> list[str]:
    """Return the statements that give a database (``target``, if named) the settings that another one has."""
    told = {"database": database, "target": target or database}
    return [str(row[0]) for row in connection.execute(_SETTINGS_OF_DATABASE.encode(), told)]


def clone_sql(name: str, template: str) -> sql.Composed:
    """Return the statement that clones a database."""
    return sql.SQL("create database {} template {} strategy wal_log").format(
        sql.Identifier(name), sql.Identifier(template)
    )


# The server's own processes are no backends of the program.
_BACKENDS = """
from pg_stat_activity
where datname = %s and application_name <> %s and backend_type in ('client backend', 'parallel worker', 'walsender')
"""

_SETTINGS_OF_DATABASE = """
select format('alter %%s set %%I to %%s',
              case when s.setrole = 0 then format('database %%I', %(target)s::text)
                   else format('role %%I in database %%I', r.rolname, %(target)s::text) end,
              split_part(setting.text, '=', 1),
              case when split_part(setting.text, '=', 1) in ('search_path', 'session_preload_libraries')
                   then substr(setting.text, strpos(setting.text, '=') + 1)
                   else quote_literal(substr(setting.text, strpos(setting.text, '=') + 1)) end)
from pg_database as d
join pg_db_role_setting as s on s.setdatabase = d.oid
left join pg_roles as r on r.oid = s.setrole
cross join unnest(s.setconfig) as setting(text)
where d.datname = %(database)s
"""


def run_psql(base: Base, script: Path) -> None:
    """Run an SQL file in the working database. Raises ConfigurationError if it fails."""
    if not script.is_file():
        raise ConfigurationError(f"the setup file {str(script)!r} is not there")
    given = conninfo_to_dict(base.dsn(base.work))
    password = {"PGPASSWORD": str(given.pop("password"))} if "password" in given else {}  # others see our arguments
    argv: list[str | Path] = [base.server.program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    argv += ["-d", make_conninfo("", **given), "-f", script]
    try:
        done = subprocess.run(
            argv,
            env=clean_environment({}) | password,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=SETUP_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"the setup file {str(script)!r} took longer than {SETUP_S_MAX:.0f} s") from error
    if done.returncode != 0:
        raise ConfigurationError(f"the setup file {str(script)!r} failed: {done.stderr.strip()[-2000:]}")


def _count(connection: psycopg.Connection, statement: str, database: str) -> int:
    row = connection.execute(statement.encode(), (database, APPLICATION)).fetchone()
    return int(row[0]) if row else 0
