"""The state before a run on a server that is not ours: clones of the original, made there and dropped there.

The original is cloned once, when nobody else is connected to it, and never written. Everything else works on databases
of our own names, from one of our own, so nothing but reading was ever asked of another. A janitor drops them,
however the test ends (``janitor.py``); should that be killed, too, the next test on the server does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgonce.crashtest import dropping
from pgonce.crashtest.base import Base, clone_sql, run_psql, settings_of
from pgonce.crashtest.copying import READ_ONLY, Original, checked, privileges_of
from pgonce.crashtest.janitor import Janitor
from pgonce.errors import ConfigurationError, Unreachable
from pgonce.server import Binaries, find_binaries, memory_folder

Tell = Callable[[str], None]

# The oldest server whose databases can be cloned without a checkpoint of the whole server.
MAJOR_MIN = 15

WHERE = (
    "tested in clones of {!r} on its own server, which was not crashed; what the program does outside its database "
    "(roles, other databases, the server's settings) it has done there"
)

# The beginning of a dump, in which it sets what older servers do not know.
HEAD_LINES = 40
_UNKNOWN_BEFORE = {17: "SET transaction_timeout = 0;"}

_LOCALE = """
select datcollate, datctype,
       case datlocprovider when 'i' then 'icu' when 'b' then 'builtin' else 'libc' end,
       coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale')
from pg_database as d where datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Guest:
    """One lane's place on the server; what ends the server is not done here."""

    dsn: str = dataclasses.field(repr=False)
    folder: Path
    version: tuple[int, int]
    binaries: Binaries

    def program(self, name: str) -> Path:
        """Return the path of a program of PostgreSQL."""
        return self.binaries.program(name)

    def crash(self) -> None:
        """Refuse to end a server that is not ours."""
        raise ConfigurationError("a server that is not a throw-away one is never crashed")

    def start(self) -> None:
        """Refuse, as it was never ended."""
        raise ConfigurationError("a server that is not a throw-away one is never started")


class Hosting:
    """What a test has on a server: a token, a database to work from, a folder, and the clones of each lane."""

    def __init__(self, original: Original, *, dsn: str, token: str, folder: Path, version: tuple[int, int]) -> None:
        self.token = token
        self.dsn = dsn
        self._original = original
        self._folder = folder
        self._version = version
        self._bases: list[Base] = []

    @property
    def desk(self) -> str:
        """Return the name of the database that whole databases are worked on from."""
        return f"{dropping.PREFIX}{self.token}_desk"

    def base(self, scripts: Sequence[Path], *, tell: Tell) -> Base:
        """Make the state of one more lane; the first is a clone of the original, the others are clones of that."""
        number = len(self._bases) + 1
        folder = self._folder / str(number)
        folder.mkdir(mode=0o700)
        guest = Guest(self.dsn, folder, self._version, find_binaries())
        base = Base(
            guest,
            f"{dropping.PREFIX}{self.token}_{number}",
            self._original.user,
            is_copy=True,
            desk=self.desk,
            known_as=self._original.database,
            password=str(psycopg.conninfo.conninfo_to_dict(self.dsn).get("password", "")),
        )
        with contextlib.ExitStack() as opened:
            opened.callback(base.close)
            base = self._like_the_first(base) if self._bases else self._first(base, scripts, tell)
            opened.pop_all()
        self._bases.append(base)
        return base

    def _first(self, base: Base, scripts: Sequence[Path], tell: Tell) -> Base:
        name, original = base.work, self._original
        with psycopg.connect(base.dsn(original.database), autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = on")
            told = (
                *_owner(connection, name, original.owner),
                *settings_of(connection, original.database, target=name),
                *privileges_of(connection, target=name),
            )
        notes = [WHERE.format(original.database)]
        try:
            base.admin.execute(clone_sql(name, original.database))
        except psycopg.errors.ObjectInUse:
            notes.append(f"others were connected to {original.database!r}, so it was dumped and restored, not cloned")
            tell(notes[-1])
            self._dumped(base)
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"the role {original.user!r} may not clone {original.database!r}: {str(error).strip()}. Name its owner "
                "or a superuser in --dsn, or leave --on-server out: a dump only has to read"
            ) from error
        for script in scripts:
            run_psql(base, script)
        settings = [*told, *(one for one in settings_of(base.admin, name) if one not in told)]
        kept = []
        for statement in settings:
            try:
                base.admin.execute(statement.encode())
                kept.append(statement)
            except psycopg.Error as error:
                notes.append(f"the clones do not have what the original has by {statement!r}: {str(error).strip()}")
        self._put_aside(base)
        return dataclasses.replace(base, settings=tuple(kept), notes=tuple(notes))

    def _like_the_first(self, base: Base) -> Base:
        first = self._bases[0]
        base.admin.execute(clone_sql(base.pristine, first.pristine))
        settings = tuple(statement.replace(first.work, base.work) for statement in first.settings)
        return dataclasses.replace(base, settings=settings)

    def _put_aside(self, base: Base) -> None:
        rename = sql.SQL("alter database {} rename to {}")
        base.admin.execute(rename.format(sql.Identifier(base.work), sql.Identifier(base.pristine)))

    def _dumped(self, base: Base) -> None:
        """Dump the original and restore it into a new database of the same server."""
        original = self._original
        with psycopg.connect(base.dsn(original.database), autocommit=True) as connection:
            row = connection.execute(_LOCALE).fetchone()
        assert row is not None, "the current database is in its list"
        collate, ctype, provider, locale = row
        how = [sql.SQL("lc_collate {} lc_ctype {}").format(sql.Literal(collate), sql.Literal(ctype))]
        if provider != "libc":
            option = sql.SQL("icu_locale" if provider == "icu" else "builtin_locale")
            how.append(sql.SQL("locale_provider {} {} {}").format(sql.SQL(provider), option, sql.Literal(locale)))
        base.admin.execute(
            sql.SQL("create database {} template template0 encoding 'UTF8' {}").format(
                sql.Identifier(base.work), sql.SQL(" ").join(how)
            )
        )
        dump = base.server.folder / "database.sql"
        environment = {**original.environment, "PGOPTIONS": READ_ONLY}
        checked([base.server.program("pg_dump"), "-f", dump, "-d", original.dsn], environment, "be dumped")
        _without_unknown(dump, self._version[0])
        run_psql(base, dump)
        dump.unlink()


@contextlib.contextmanager
def hosting(original: Original, *, folder: Path | None, tell: Tell) -> Iterator[Hosting]:
    """Be a guest on the original's server until the end of the block or of the process; then nothing of ours is left.

    ``folder`` is where files lie; None takes the temporary folder. Raises ConfigurationError for a server or a role
    that this cannot be done with, also when something could not be dropped at the end, naming it.
    """
    token = dropping.new_token()
    marker = dropping.marker(token)
    with psycopg.connect(original.dsn, application_name=marker, autocommit=True) as connection:
        version = divmod(connection.info.server_version, 10_000)
        dsn = _address(connection, original)
        if version[0] < MAJOR_MIN:
            raise ConfigurationError(f"--on-server needs PostgreSQL {MAJOR_MIN} or newer; this is {version[0]}")
        clear_up(connection, dsn, tell)
        connection.execute("set default_transaction_read_only = off")  # for the making of databases of our own
        made = _folder_of(token, folder)
        made.mkdir(mode=0o700)
        places = [make_conninfo(dsn, dbname=name, application_name=marker) for name in ("postgres", original.database)]
        janitor = Janitor(dsns=places, token=token, folder=made)
        with _ended(janitor, original), connection:
            host = Hosting(original, dsn=dsn, token=token, folder=made, version=version)
            _make_desk(connection, host.desk, original)
            host.dsn = make_conninfo(dsn, dbname=host.desk)
            with _connected(host.dsn, marker):
                connection.close()  # nobody may be connected to what is cloned, we neither
                yield host


def clear_up(connection: psycopg.Connection, dsn: str, tell: Tell) -> None:
    """Drop what tests left that were killed together with their janitor, and tell; their folders on this machine, too.

    Safe to re-run: yes.
    """
    dropped, kept = [], []
    for name in dropping.left_behind(connection):
        try:
            dropping.drop(connection, name, dsn=dsn)
            dropped.append(name)
            for folder in (memory_folder(), None):
                shutil.rmtree(_folder_of(dropping.token_of(name), folder), ignore_errors=True)
        except psycopg.Error as error:
            kept.append(f"{name} ({str(error).strip()})")
    if dropped:
        tell(f"dropped what an earlier crash test, which was killed, had left on the server: {', '.join(dropped)}")
    if kept:
        tell(f"an earlier crash test left databases that cannot be dropped now; drop them by hand: {', '.join(kept)}")


@contextlib.contextmanager
def _ended(janitor: Janitor, original: Original) -> Iterator[None]:
    try:
        yield
    finally:
        earlier = sys.exception()
        left = janitor.finish()
        if left:
            raise ConfigurationError(
                f"these databases of the crash test could not be dropped on the server of {original.database!r}: "
                f"{', '.join(left)}. The next test there tries it again; or drop them by hand."
                + (f" Before that: {earlier}" if earlier is not None else "")
            )


@contextlib.contextmanager
def _connected(dsn: str, marker: str) -> Iterator[None]:
    """Hold the session that says that this test lives."""
    try:
        standing = psycopg.connect(make_conninfo(dsn, application_name=marker), autocommit=True)
    except psycopg.OperationalError as error:
        raise ConfigurationError(
            f"a database was made on the server, but it lets nobody in: {str(error).strip()}. If --dsn leads to a "
            "pooler, name the server itself; if pg_hba.conf names single databases, leave --on-server out"
        ) from error
    with contextlib.closing(standing):
        standing.execute("set idle_session_timeout = 0")
        yield


def _folder_of(token: str, folder: Path | None) -> Path:
    return (folder or Path(tempfile.gettempdir())) / f"pgonce-crashtest-{token}"


def _make_desk(connection: psycopg.Connection, name: str, original: Original) -> None:
    try:
        connection.execute(
            sql.SQL("create database {} template template0 strategy wal_log").format(sql.Identifier(name))
        )
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"the role {original.user!r} may not make databases on this server. Give it the right "
            f"(ALTER ROLE ... CREATEDB), name another role in --dsn, or leave --on-server out"
        ) from error
    except psycopg.Error as error:
        raise ConfigurationError(f"no database can be made on this server: {str(error).strip()}") from error


def _address(connection: psycopg.Connection, original: Original) -> str:
    """Return the server's own address, as it was reached, for us and for the proxy."""
    info = connection.info
    if connection.pgconn.ssl_in_use:
        raise ConfigurationError(
            f"the connection to {info.host!r} is encrypted by TLS, and the one on which the program is failed could "
            "not be. If the network between can be trusted, say sslmode=disable in --dsn, or name the server's Unix "
            "socket; else leave --on-server out"
        )
    return make_conninfo(
        "",
        host=info.host,
        hostaddr="" if info.host.startswith("/") else info.hostaddr,
        port=info.port,
        user=original.user,
        dbname=original.database,
        sslmode="disable",
        gssencmode="disable",
        target_session_attrs="any",
        **({"password": info.password} if info.password else {}),
    )


def _owner(connection: psycopg.Connection, name: str, owner: str) -> tuple[str, ...]:
    """Return the statement that gives a clone the original's owner, where it then can still be dropped by us."""
    row = connection.execute("select current_user <> %s and pg_has_role(%s, 'usage')", (owner, owner)).fetchone()
    if row is None or not row[0]:
        return ()
    return (sql.SQL("alter database {} owner to {}").format(sql.Identifier(name), sql.Identifier(owner)).as_string(),)


def _without_unknown(dump: Path, major: int) -> None:
    """Take out of a dump's head what the server is too old to know."""
    unknown = {line for since, line in _UNKNOWN_BEFORE.items() if major < since}
    lines = dump.read_bytes().split(b"\n", HEAD_LINES)
    kept = [line for line in lines[:-1] if line.decode("utf-8", "replace").strip() not in unknown]
    dump.write_bytes(b"\n".join([*kept, lines[-1]]))


def explain(error: psycopg.Error, original: Original) -> ConfigurationError | Unreachable:
    """Say what a refusal of the server means that came while the test was at work there."""
    said = str(error).strip()
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return ConfigurationError(
            f"the role {original.user!r} may not do on the clones what the crash test needs: {said}. Name a role in "
            "--dsn that may read every table, or leave --on-server out"
        )
    return Unreachable(f"the server of {original.database!r} failed the crash test: {said}")
