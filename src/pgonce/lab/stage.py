"""The stage of one scenario: a database of its own, named connections, barriers, and a time line of what was seen.

Nothing here waits for time to pass. A barrier is something that the server itself shows (``pg_stat_activity``,
``pg_blocking_pids``), and one that is not seen in time makes the scenario inconclusive, never green.
"""

from __future__ import annotations

import contextlib
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

from pgonce.crashtest.boundary import Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.errors import Inconclusive
from pgonce.lab.home import Lab

BARRIER_S_MAX = 20.0
"""What a barrier waits for happens within milliseconds; this is for a machine that is busy with other things."""
COPY = "pgdata.copy"
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
    steps: list[Step] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _monitor: Connection | None = None
    _proxies: int = 0

    def say(self, actor: str, text: str) -> None:
        """Put something on the time line."""
        self.steps.append(Step(time.monotonic() - self._began_s, actor, text))

    def dsn(self, actor: str) -> str:
        """Return the connection string of an actor."""
        return self.lab.dsn(f"lab-{actor}", self.database)

    def connect(self, actor: str, dsn: str | None = None) -> Connection:
        """Connect an actor, in READ COMMITTED and with explicit transactions."""
        connection = psycopg.connect(dsn or self.dsn(actor))
        self._open.callback(connection.close)
        self.say(actor, f"connected as backend {connection.info.backend_pid}")
        return connection

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement by itself, as the one who looks on; return its rows."""
        if self._monitor is None or self._monitor.closed:
            self._monitor = psycopg.connect(self.lab.dsn("lab-monitor", self.database), autocommit=True)
            self._open.callback(self._monitor.close)
        cursor = self._monitor.execute(text, values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, text: str, *values: object) -> Any:
        """Run a query of one row and one column; return what stands there."""
        [(found,)] = self.sql(text, *values)
        return found

    def execute(self, actor: str, connection: Connection, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement as an actor, and put it and its answer on the time line; return its rows."""
        shown = psycopg.ClientCursor(connection).mogrify(text, values or None)
        self.say(actor, " ".join(shown.split()))
        try:
            cursor = connection.execute(text, values or None)
        except psycopg.Error as error:
            self.say(actor, f"{error.sqlstate or 'no SQLSTATE'}: {str(error).strip().splitlines()[0]}")
            raise
        rows = cursor.fetchall() if cursor.description else []
        self.say(actor, f"-> {_shown(rows)}" if cursor.description else f"-> {cursor.statusmessage}")
        return rows

    def commit(self, actor: str, connection: Connection) -> None:
        """Commit as an actor, and put it on the time line."""
        self.execute(actor, connection, "commit")

    def start(self, actor: str, work: Callable[[], Any]) -> Future[Any]:
        """Let an actor work in a thread of its own, for instance up to where it is blocked."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 (handed to whoever asks for the result)
                future.set_exception(error)

        threading.Thread(target=run, name=f"lab-{actor}", daemon=True).start()
        return future

    def psql(self, actor: str, text: str) -> subprocess.Popen[str]:
        """Start a psql process as an actor; it is ended with the scenario if it did not end before."""
        argv, environment = self.lab.psql(f"lab-{actor}", text, self.database)
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
        self.say(actor, f"psql, process {process.pid}: {' '.join(text.split())}")
        return process

    def proxy(self, on_boundary: Callable[[Boundary], Action]) -> Proxy:
        """Put a proxy before the server that asks ``on_boundary`` at every message on which the server acts."""
        self._proxies += 1
        socket = f"{self.lab.folder}/.s.PGSQL.5432"
        return self._open.enter_context(
            Proxy(socket, on_boundary=on_boundary, listen_dir=self.folder / f"p{self._proxies}")
        )

    def crash(self) -> None:
        """End the server as a power cut would, and let it recover."""
        self.lab.server.crash()
        self.say("server", "stopped at once, without a checkpoint")
        self._start()

    def copy_data(self) -> None:
        """Stop the server in order, put a copy of its data aside, and start it again."""
        self.lab.server.stop()
        _copy(self.lab.server.pgdata, self.lab.folder / COPY)
        self.say("server", "a copy of the data was put aside")
        self._start()

    def set_back(self) -> None:
        """Crash the server and start it on the copy, as after a failover to a server that lagged behind."""
        self.lab.server.crash()
        shutil.rmtree(self.lab.server.pgdata)
        (self.lab.folder / COPY).rename(self.lab.server.pgdata)
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

    def wait_until_blocked(self, waiting: str, by: str) -> None:
        """Wait until the server shows one actor blocked by another one."""
        question = """select count(*) from pg_stat_activity as w where w.application_name = %s and exists (
            select from pg_stat_activity as h where h.application_name = %s and h.pid = any(pg_blocking_pids(w.pid)))"""
        self.wait_for(lambda: self.value(question, f"lab-{waiting}", f"lab-{by}") == 1, f"{waiting} blocked by {by}")

    def close(self) -> None:
        """End everything that was opened; the server ends what still runs for it."""
        with contextlib.suppress(psycopg.Error):
            self.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        self._open.close()


@contextlib.contextmanager
def stage(lab: Lab, scenario: str) -> Iterator[Stage]:
    """Set a stage with an empty database, and strike it at the end."""
    database = f"lab_{scenario.replace('-', '_')}"
    folder = lab.folder / "stage"
    _replace_database(lab, database)
    _sweep(folder)
    folder.mkdir(mode=0o700)
    made = Stage(lab, database, folder)
    try:
        yield made
    finally:
        made.close()
        _sweep(folder)
        _sweep(lab.folder / COPY)
        with contextlib.suppress(psycopg.Error):
            _drop_database(lab, database)


def _replace_database(lab: Lab, database: str) -> None:
    _drop_database(lab, database)
    with psycopg.connect(lab.dsn("lab-stage"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))


def _drop_database(lab: Lab, database: str) -> None:
    with psycopg.connect(lab.dsn("lab-stage"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))


def _copy(data: Path, to: Path) -> None:
    """Copy a data folder with owners and modes; the server starts on it as it did on the first."""
    subprocess.run(["cp", "-a", str(data), str(to)], check=True)


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
