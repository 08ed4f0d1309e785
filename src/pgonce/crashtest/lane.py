"""One lane: a scratch server, a proxy in front of it, a working folder, and the program that runs in it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pgonce.crashtest import boundary as at
from pgonce.crashtest import environment, workdir
from pgonce.crashtest.base import Base, Ground
from pgonce.crashtest.boundary import PASS, Action, Boundary
from pgonce.crashtest.faults import Blow, Fault
from pgonce.crashtest.greeting import Admit, Refused
from pgonce.crashtest.limits import BACKENDS_S_MAX, MOMENT_S, OUTPUT_BYTES_MAX
from pgonce.crashtest.peer import kill
from pgonce.crashtest.points import Met, Point, Trail
from pgonce.crashtest.program import Ended, Programs, programs
from pgonce.crashtest.proxy import Proxy
from pgonce.errors import ConfigurationError

_NOT_YET = "57P03"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The program under test and where it runs; ``until`` is a query that is true when a worker has done its work.

    ``not_copied`` are files of the folder that are the test's own, such as its reports.
    """

    argv: tuple[str, ...]
    folder: Path | None
    assignments: tuple[str, ...] = ()
    template: Path | None = None
    port: int | None = None
    isolate: bool = True
    kills_client_only: bool = False
    until: str = ""
    not_copied: frozenset[Path] = frozenset()


@dataclass(slots=True)
class Trace:
    """What was seen of one run at the proxy."""

    met: list[Met] = field(default_factory=list)
    logins: int = 0
    databases: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the program: how it ended, what was seen of it, what it said last, and whether the fault came."""

    ended: Ended
    trace: Trace
    output: str
    struck: bool = False
    answer: str = ""
    backends_ended: int = 0


class Lane:
    """Runs the program, each time from where the state is; resets the state when asked."""

    def __init__(
        self,
        base: Base,
        command: Command,
        kept: Programs,
        proxy: Proxy,
        snapshot: workdir.Snapshot,
        inherited: Mapping[str, str],
    ) -> None:
        self.base = base
        self.command = command
        self._kept = kept
        self._proxy = proxy
        self._snapshot = snapshot
        self._numbers = itertools.count(1)
        self._has_missed = False
        self.address = environment.Address(
            "127.0.0.1", kept.port, base.user, base.known_as or base.work, base.password or environment.PASSWORD
        )
        self._env, self.dropped = environment.build(
            inherited, self.address, assignments=command.assignments, work=snapshot.work
        )

    @property
    def not_isolated_because(self) -> str:
        """Return why the program can reach other hosts; empty if it cannot."""
        return self._kept.not_isolated_because if self.command.isolate else "--no-isolate"

    @property
    def has_declined_tls(self) -> bool:
        """Say whether the program asked for TLS in its last run."""
        return self._proxy.has_declined_tls

    @property
    def pristine(self) -> Path:
        """Return the folder that the working folder is put back to."""
        return self._snapshot.pristine

    @property
    def work(self) -> Path:
        """Return the working folder."""
        return self._snapshot.work

    def reset(self) -> None:
        """Put database and working folder back as they were before the program ever ran."""
        self.base.reset()
        self._snapshot = workdir.reset(self._snapshot)
        if self.command.template is not None:
            path = self.work / self.command.template.name
            path.write_text(environment.filled(path.read_text(), self.address))

    def knocks(self, limit_s: float) -> tuple[bool, str]:
        """Start the program with every login refused; say whether it tried to log in, and what it said."""
        knocked = threading.Event()

        def refuse(_: Mapping[str, str]) -> Mapping[str, str]:
            knocked.set()
            raise Refused(_NOT_YET, "the database system is starting up")

        output = self._start(lambda _: PASS, refuse, only_watches=True)
        until = time.monotonic() + limit_s
        while not knocked.is_set() and time.monotonic() < until and not self._kept.has_ended(MOMENT_S):
            pass
        self._kept.end()
        self._proxy.settle(MOMENT_S)
        return knocked.is_set(), _tail(output)

    def run(self, limit_s: float, *, point: Point | None = None, blow: Blow | None = None) -> Ran:
        """Run the program; where it comes to the point, strike the blow. Returns when nothing of it is left."""
        trail = Trail(point if blow is not None else None)
        trace = Trace()

        def on_boundary(boundary: Boundary) -> Action:
            return self._action(blow) if trail.reaches(boundary) and blow is not None else PASS

        def admit(parameters: Mapping[str, str]) -> Mapping[str, str]:
            trace.logins += 1
            trace.databases.add(parameters.get("database", parameters.get("user", "")))
            return self._as_ours(parameters)

        self._has_missed = False
        output = self._start(on_boundary, admit, only_watches=trail.sought is None)
        ended = self._kept.wait(limit_s, until=self._is_done if self.command.until else None)
        self._proxy.settle(BACKENDS_S_MAX)
        self._proxy.raise_failure()
        left = self.base.wait_for_backends()
        trace.met = trail.met()
        fired = list(self._proxy.fired)
        struck = bool(fired) and not self._has_missed
        return Ran(ended, trace, _tail(output), struck, fired[0].answer if fired else "", left)

    def _start(self, on_boundary: Callable[[Boundary], Action], admit: Admit, *, only_watches: bool) -> Path:
        self._proxy.begin(on_boundary, admit=admit, only_watches=only_watches)
        output = self._snapshot.work.parent / f"output-{next(self._numbers) % 8}"
        output.unlink(missing_ok=True)
        self._kept.start(self._argv(), env=self._env, cwd=self.work, output=output)
        return output

    def _is_done(self) -> bool:
        """Ask the database whether a worker that never ends has done its work."""
        try:
            with self.base.connected(self.base.work) as connection:
                row = connection.execute(self.command.until.encode()).fetchone()
        except psycopg.OperationalError:  # the server is just recovering
            return False
        except psycopg.Error as error:
            raise ConfigurationError(f"the query of --until failed: {str(error).strip()}") from error
        return bool(row and row[0])

    def _argv(self) -> tuple[str, ...]:
        """Return the command with ``{dsn}`` and so on filled in; a program outside the folder gets its whole path."""
        argv = tuple(environment.filled(word, self.address) for word in self.command.argv)
        name, folder = argv[0], self.command.folder
        if folder is None or "/" not in name or Path(name).is_absolute():
            return argv
        lexical = Path(os.path.normpath(folder.absolute() / name))
        if lexical.is_relative_to(os.path.normpath(folder.absolute())):
            return argv
        return (str(lexical), *argv[1:])

    def _as_ours(self, parameters: Mapping[str, str]) -> Mapping[str, str]:
        """Lead a login to the working database where no database of that name was copied.

        On a server that is not ours it leads there, or nowhere: never to another database.
        """
        asked = parameters.get("user", "")
        if self.base.known_as:
            database = parameters.get("database", asked)
            if database != self.base.known_as or parameters.get("replication", "off") not in (
                "off",
                "false",
                "no",
                "0",
            ):
                raise Refused(
                    "3D000", f"the crash test leads to the database {self.base.known_as!r} only, not elsewhere"
                )
            return {**parameters, "database": self.base.work}
        if self.base.is_copy:
            return parameters
        user = asked if asked in self.base.roles else self.base.user
        return {**parameters, "user": user, "database": self.base.work}

    def _action(self, blow: Blow) -> Action:
        if blow.fault is Fault.CUT_BEFORE:
            return at.CUT_BEFORE
        if blow.fault is Fault.CUT_AFTER:
            return at.CUT_AFTER
        if blow.fault is Fault.SERIALIZATION:
            return at.error_before("40001")
        if blow.fault is Fault.TERMINATE:
            return at.TERMINATE_AFTER if blow.is_after else at.TERMINATE_BEFORE
        call = self._crash if blow.fault is Fault.CRASH else self._kill
        return at.call_after(call) if blow.is_after else at.call_before(call)

    def _kill(self, client: socket.socket) -> None:
        if self.command.kills_client_only:
            kill(self._kept.process_of(client))
        elif self._kept.kill() == 0:
            self._has_missed = True  # the client was gone already: nothing was tried

    def _crash(self, _client: socket.socket) -> None:
        self.base.crash()


@contextlib.contextmanager
def opened(server: Ground, base: Base, command: Command, *, inherited: Mapping[str, str]) -> Iterator[Lane]:
    """Open a lane on a server whose pristine database is made; everything of it lies in the server's folder."""
    folder = server.folder / "crashtest"
    folder.mkdir(mode=0o700)
    snapshot = workdir.prepare(command.folder, folder, not_copied=command.not_copied)
    if command.template is not None and not (snapshot.work / command.template.name).exists():
        raise ConfigurationError(f"the template {str(command.template)!r} is not in the program's working folder")
    with (
        programs(isolate=command.isolate, port=command.port) as (kept, listener),
        Proxy(
            base.upstream,
            points="pipeline",
            side_dsn=base.dsn(base.desk),
            side_database=base.work if base.known_as else None,
            listener=listener,
        ) as proxy,
    ):
        yield Lane(base, command, kept, proxy, snapshot, inherited)


def _tail(output: Path) -> str:
    try:
        with output.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - OUTPUT_BYTES_MAX))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
