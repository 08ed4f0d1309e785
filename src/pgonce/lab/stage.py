"""The stage of one scenario: a database of its own, named connections, barriers, and a time line of what was seen.

Nothing here waits for time to pass. A barrier is something that the server itself shows (``pg_stat_activity``,
``pg_blocking_pids``), and one that is not seen in time makes the scenario inconclusive, never green.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgonce.crashtest.boundary import Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.errors import ConfigurationError, Inconclusive
from pgonce.lab.home import Lab

BARRIER_S_MAX = 20.0
"""What a barrier waits for happens within milliseconds; this is for a machine that is busy with other things."""
COPY, LOCK = "pgdata.copy", "stage.lock"
RECOVERED = b"database system was not properly shut down"
"""What a server writes into its log when it starts after a crash, and only then."""
END_S_MAX = 10.0
"""How long a worker may take to end once its gate is open."""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened: when (seconds from the beginning), to whom, and what."""

    at_s: float
    actor: str
    text: str


@dataclass(slots=True)
class Stage:
    """What a scenario works with. Everything opened on it is closed when the scenario leaves it."""

    lab: Lab
    database: str
    folder: Path
    limited: bool = False
    """Whether an actor's statement ends after 7 s, and after 5 s at a lock. If not, an actor waits as long as the
    player does, however slow that is."""
    steps: list[Step] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _monitor: Connection | None = None
    _proxies: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)

    def say(self, actor: str, text: str) -> None:
        """Put something on the time line."""
        self.steps.append(Step(time.monotonic() - self._began_s, actor, text))

    def dsn(self, actor: str) -> str:
        """Return the connection string of an actor."""
        given = self.lab.dsn(f"lab-{actor}", self.database)
        return given if self.limited else _with_limits(given, 0)

    def connect(self, actor: str, dsn: str | None = None) -> Connection:
        """Connect an actor, in READ COMMITTED and with explicit transactions."""
        connection = psycopg.connect(dsn or self.dsn(actor))
        self._open.callback(connection.close)
        self.say(actor, f"connected as backend {connection.info.backend_pid}")
        return connection

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement by itself, as the one who looks on; return its rows."""
        if self._monitor is None or self._monitor.closed:
            limits_ms = round(BARRIER_S_MAX * 1000)
            dsn = _with_limits(self.lab.dsn("lab-monitor", self.database), limits_ms)
            self._monitor = psycopg.connect(dsn, autocommit=True)
            self._open.callback(self._monitor.close)
        cursor = self._monitor.execute(text, values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, text: str, *values: object) -> Any:
        """Run a query of one row and one column; return what stands there."""
        [(found,)] = self.sql(text, *values)
        return found

    def execute(self, actor: str, connection: Connection, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement as an actor, and put it and its answer on the time line; return its rows."""
        return self._run(actor, connection, text, *values)[0]

    def _run(
        self, actor: str, connection: Connection, text: str, *values: object
    ) -> tuple[list[tuple[Any, ...]], str | None]:
        """Run a statement as an actor; return its rows and its command tag."""
        shown = psycopg.ClientCursor(connection).mogrify(text, values or None)
        self.say(actor, " ".join(shown.split()))
        try:
            cursor = connection.execute(text, values or None)
        except psycopg.Error as error:
            self.say(actor, f"{error.sqlstate or 'no SQLSTATE'}: {str(error).strip().splitlines()[0]}")
            raise
        rows = cursor.fetchall() if cursor.description else []
        self.say(actor, f"-> {_shown(rows)}" if cursor.description else f"-> {cursor.statusmessage}")
        return rows, cursor.statusmessage

    def commit(self, actor: str, connection: Connection) -> str:
        """Commit as an actor, and put it on the time line; return what the server answered, its command tag."""
        return str(self._run(actor, connection, "commit")[1])

    def start(self, actor: str, work: Callable[[], Any]) -> Future[Any]:
        """Let an actor work in a thread of its own, for instance up to where it is blocked."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 (handed to whoever asks for the result)
                future.set_exception(error)

        thread = threading.Thread(target=run, name=f"lab-{actor}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return future

    def psql(self, actor: str, *texts: str) -> subprocess.Popen[str]:
        """Start a psql process as an actor that sends these texts, each as one message.

        It is ended with the scenario if it did not end before.
        """
        argv, environment = self.lab.psql(f"lab-{actor}", texts[0], self.database)
        argv[argv.index("-d") + 1] = self.dsn(actor)
        for text in texts[1:]:
            argv += ["-c", text]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._open.callback(_end, process)
        self.say(actor, f"psql, process {process.pid}: {' '.join('; '.join(texts).split())}")
        return process

    def proxy(self, on_boundary: Callable[[Boundary], Action]) -> Proxy:
        """Put a proxy before the server that asks ``on_boundary`` at every message on which the server acts."""
        self._proxies += 1
        socket = f"{self.lab.folder}/.s.PGSQL.5432"
        return self._open.enter_context(
            Proxy(socket, on_boundary=on_boundary, listen_dir=self.folder / f"p{self._proxies}")
        )

    def crash(self) -> None:
        """End the server as a power cut would, and let it recover; raise Inconclusive if it had nothing to recover."""
        log = self.lab.server.log_path
        seen_bytes = log.stat().st_size
        self.lab.server.crash()
        self.say("server", "stopped at once, without a checkpoint")
        self._start()
        written = log.read_bytes()
        if RECOVERED not in written[seen_bytes if seen_bytes <= len(written) else 0 :]:
            raise Inconclusive(
                f"the lab's server came up without recovering, so it had not crashed; its log is {str(log)!r}. "
                "Run it again."
            )
        self.say("server", "it recovered: its log says that it was not properly shut down")

    def copy_data(self) -> None:
        """Stop the server in order, put a copy of its data aside, and start it again."""
        self.lab.server.stop()
        try:
            _copy(self.lab.server.pgdata, self.lab.home / COPY)
            self.say("server", "a copy of the data was put aside")
        finally:
            self._start()

    def set_back(self) -> None:
        """Crash the server and start it on the copy, as after a failover to a server that lagged behind."""
        self.lab.server.crash()
        shutil.rmtree(self.lab.server.pgdata)
        (self.lab.home / COPY).rename(self.lab.server.pgdata)
        self.say("server", "set back to the copy: what was acknowledged after it is gone")
        self._start()

    def _start(self) -> None:
        self.lab.server.start()
        self.say("server", "up again")
        self._monitor = None

    def wait_for(self, seen: Callable[[], object], what: str) -> None:
        """Wait until something is seen; raise Inconclusive if it is not, in time."""
        deadline = time.monotonic() + BARRIER_S_MAX
        while not seen():
            if time.monotonic() > deadline:
                raise Inconclusive(
                    f"the lab did not see {what} within {BARRIER_S_MAX:.0f} s, so this scenario shows nothing. "
                    "Run it again on a machine that is less busy."
                )
            time.sleep(0.005)
        self.say("monitor", f"seen: {what}")

    def wait_until_blocked(self, waiting: str, by: str) -> bool:
        """Wait until the server shows one actor blocked by another one; return True, for it was seen."""
        question = """select count(*) from pg_stat_activity as w where w.application_name = %s and exists (
            select from pg_stat_activity as h where h.application_name = %s and h.pid = any(pg_blocking_pids(w.pid)))"""
        self.wait_for(lambda: self.value(question, f"lab-{waiting}", f"lab-{by}") == 1, f"{waiting} blocked by {by}")
        return True

    def close(self) -> None:
        """End everything that was opened; the server ends what still runs for it."""
        with contextlib.suppress(psycopg.Error):
            self.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        for thread in self._threads:  # a connection that a thread still reads from may not be closed under it
            thread.join(END_S_MAX)
        self._open.close()


@contextlib.contextmanager
def stage(lab: Lab, scenario: str, *, limited: bool = False) -> Iterator[Stage]:
    """Set a stage with an empty database, and strike it at the end.

    ``limited`` sessions give up after 7 s, and after 5 s at a lock. Raises ConfigurationError while another process
    plays in this lab: there is one stage in it.
    """
    database = f"lab_{scenario.replace('-', '_')}"
    folder = lab.home / "stage"
    with _alone(lab):
        _replace_database(lab, database)
        _sweep(folder)
        folder.mkdir(mode=0o700)
        made = Stage(lab, database, folder, limited)
        try:
            yield made
        finally:
            made.close()
            _sweep(folder)
            _sweep(lab.home / COPY)
            with contextlib.suppress(psycopg.Error):
                _drop_database(lab, database)


@contextlib.contextmanager
def _alone(lab: Lab) -> Iterator[None]:
    """Hold the lock of the lab's stage, which ends with this process, however that ends."""
    path = lab.home / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be opened: {error.strerror}. It is an empty file of the lab's; remove what stands "
            "there, then run again."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigurationError(
            f"another `pgonce lab run` plays in this lab, {str(lab.folder)!r}; run again when it has ended."
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _with_limits(dsn: str, limits_ms: int) -> str:
    """Return the connection string with this limit for a statement and for a lock; 0 is none."""
    options = f"-c statement_timeout={limits_ms} -c lock_timeout={limits_ms} -c client_min_messages=warning"
    return make_conninfo(dsn, options=options)


def _replace_database(lab: Lab, database: str) -> None:
    _drop_database(lab, database)
    with psycopg.connect(lab.dsn("lab-stage"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))


def _drop_database(lab: Lab, database: str) -> None:
    with psycopg.connect(lab.dsn("lab-stage"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))


def _copy(data: Path, to: Path) -> None:
    """Copy a data folder with owners and modes; the server starts on it as it did on the first.

    A copy that a killed run left is removed first: ``cp`` would copy into it.
    """
    _sweep(to)
    try:
        subprocess.run(["cp", "-a", str(data), str(to)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise Inconclusive(
            f"the lab's data could not be copied to {str(to)!r}, so this scenario shows nothing: {said.strip()}. "
            "It needs as much space again as the lab has (`du -sh` shows it); make room, then run it again."
        ) from error


def _sweep(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that did not end by itself, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _shown(rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return "no row"
    return "; ".join(" | ".join(str(value) for value in row) for row in rows[:5])
