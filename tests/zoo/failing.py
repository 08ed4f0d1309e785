"""Run a program of the zoo, fail it at one point through the proxy, run it again, and compare."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import psycopg

from faults.harness import wait_until
from pgonce.crashtest import boundary as at
from pgonce.crashtest.boundary import PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.crashtest.wire import Kind
from zoo import books, running
from zoo.catalogue import FAULTS, Program
from zoo.running import Ended

# A second start may meet what the first left behind; a third must not.
RERUNS_MAX = 3

OUTPUT_BYTES_SHOWN = 1_000

_SESSIONS = """select from pg_stat_activity
where datname = current_database() and pid <> %s and backend_type = 'client backend'"""

_UNNAMED = (Kind.STARTUP, Kind.COPY_DONE, Kind.COPY_FAIL, Kind.TERMINATE)


@dataclass(frozen=True, slots=True)
class Place:
    """A point of a program: its name, which one of that name it is, and the kind of its message."""

    name: str
    nth: int
    kind: str


@dataclass(frozen=True, slots=True)
class Tried:
    """What a fault at a point led to."""

    fault: str
    when: str
    place: Place
    verdict: str
    story: str

    def __str__(self) -> str:
        place = self.place
        return f"{self.fault} ({self.when}) at {place.kind} {place.name!r} #{place.nth}: {self.verdict} {self.story}"


@dataclass(slots=True)
class Watch:
    """Names the points of a run as they are met, and does something at one of them; ``spell`` may simplify names."""

    wanted: Place | None = None
    deed: Callable[[Boundary], Action] = lambda _: PASS
    met: list[Place] = field(default_factory=list)
    can_fail: list[bool] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    spell: Callable[[str], str] = str

    def __call__(self, boundary: Boundary) -> Action:
        name, kind = self.spell(name_of(boundary)), boundary.kind.value
        self.counts[name, kind] += 1
        place = Place(name, self.counts[name, kind], kind)
        self.met.append(place)
        self.can_fail.append(boundary.can_fail)
        return self.deed(boundary) if place == self.wanted else PASS


def name_of(boundary: Boundary) -> str:
    """Name a point as the zoo does."""
    if boundary.kind in _UNNAMED or not boundary.statement:
        return f"<{boundary.kind.value}>"
    return boundary.statement


class Cage:
    """A database and a working folder for one program, brought back to their base before every try.

    ``crash`` ends and restarts the server; without it that fault cannot be had. ``is_forked`` runs Python programs in a
    fork of this process, which has imported what they need: the same program, a tenth of the time.
    """

    def __init__(
        self,
        program: Program,
        dsn: str,
        folder: Path,
        *,
        crash: Callable[[], None] | None = None,
        is_forked: bool = True,
        points: Literal["statement", "message"] = "statement",
    ) -> None:
        self.program = program
        self.dsn = dsn
        self._points: Literal["statement", "message"] = points
        self._crash = crash
        self._own: psycopg.Connection | None = None
        self._is_forked = is_forked and program.command[0] in ("python", "pgonce")
        if self._is_forked:
            running.import_ahead(program.needs)
        self.listen_dir: Path | None = folder / "s"
        self._work = folder / "work"
        before = running.command_of(program.before_setup)
        sql = subprocess.run(before, check=True, capture_output=True, text=True).stdout if before else ""
        self._setup = sql + program.setup
        self.reset()
        self.base = self.look()
        ended, watch = self.through_proxy(self.watch())
        if ended.code != 0:
            raise AssertionError(f"the clean run of {program.name} ended with {ended.code}: {ended.output}")
        self.clean = self.look()
        self.points = list(zip(watch.met, watch.can_fail, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()

    @property
    def own(self) -> psycopg.Connection:
        """The harness's own connection; the server may have been crashed under it."""
        if self._own is None or self._own.closed:
            self._own = psycopg.connect(self.dsn, autocommit=True)
        return self._own

    def reset(self) -> None:
        """Bring database and working folder back to the base."""
        self.wait_until_quiet()
        schemas = "select quote_ident(nspname) from pg_namespace where nspname !~ '^pg_|^information_schema$'"
        drops = [f"drop schema {name} cascade;" for (name,) in self.own.execute(schemas).fetchall()]
        self.own.execute(f"{' '.join(drops)} create schema public; {self._setup}")
        self.lay()

    def lay(self) -> None:
        """Make the working folder anew."""
        shutil.rmtree(self._work, ignore_errors=True)
        self.program.lay(self._work)

    def look(self) -> books.State:
        """Read what is compared."""
        return books.look(self.own, self.program)

    def wait_until_quiet(self, *, may_crash: bool = False) -> None:
        """Wait until the program has no session any more; with ``may_crash`` the server may go down meanwhile."""

        def is_quiet() -> bool:
            try:
                return self.own.execute(_SESSIONS, (self.own.info.backend_pid,)).rowcount == 0
            except psycopg.Error:
                if not may_crash:
                    raise
                return False

        wait_until(is_quiet, "the program's sessions to be gone")

    def try_all(self, faults: tuple[str, ...], *, sample: int | None = None) -> Iterator[Tried]:
        """Try each fault at each point of the clean run.

        With ``sample``, of the points that are expected to be SAFE anyway only so many for each fault, evenly spread.
        """
        for fault in faults:
            for when in FAULTS[fault]:
                able = [place for place, can_fail in self.points if fault != "serialization" or can_fail]
                safe = [place for place in able if self.expected(fault, when, place) == ("SAFE",)]
                kept = safe if sample is None else safe[:: -(-len(safe) // sample) or 1]
                for place in able:
                    if place not in safe or place in kept:
                        yield self.attempt(fault, when, place)

    def expected(self, fault: str, when: str, place: Place) -> tuple[str, ...]:
        """Return the verdicts that the zoo calls right."""
        return self.program.expected(fault, when, place.name, place.nth, kind=place.kind)

    def attempt(self, fault: str, when: str, place: Place) -> Tried:
        """Fail the program at a point, run it again until it ends well, and judge the end."""
        self.reset()
        ended, watch = self.through_proxy(self.watch(place), fault, when)
        if place not in watch.met:
            return Tried(fault, when, place, "UNREACHED", "")
        return Tried(fault, when, place, *self.run_again(f"ended with {ended.code}"))

    def run_again(self, story: str) -> tuple[str, str]:
        """Run the program without a fault until it ends well; return the verdict and what led to it."""
        for _ in range(RERUNS_MAX):
            self.wait_until_quiet()
            again = self._run(self.dsn)
            story += f", then {again.code}"
            if again.code == 0:
                break
        else:
            return "STUCK", f"{story}: {again.output[-OUTPUT_BYTES_SHOWN:]}"
        self.wait_until_quiet()
        found = self.look()
        return books.verdict(self.base, self.clean, found), f"{story} {books.describe(self.clean, found)}"

    def through_proxy(self, watch: Watch, fault: str = "", when: str = "") -> tuple[Ended, Watch]:
        """Run the program through the proxy to its end, with a fault at the point that is watched for."""
        info = self.own.info
        socket = f"{info.host}/.s.PGSQL.{info.port}"
        proxy = Proxy(socket, on_boundary=watch, listen_dir=self.listen_dir, points=self._points, side_dsn=self.dsn)
        proxy.open()
        struck = _Struck(self, fault, when)
        watch.deed = struck.meet
        with contextlib.ExitStack() as stack:
            stack.push(proxy.__exit__)
            ended = self._run(proxy.dsn(self.dsn), proxy, struck)
            self.wait_until_quiet(may_crash=fault == "crash")
            struck.is_pending(proxy)
        return ended, watch

    def watch(self, place: Place | None = None) -> Watch:
        """Make what names the points of a run, and waits for one of them."""
        return Watch(place)

    def wait_for(self, pid: int, is_pending: Callable[[], bool]) -> bool:
        """Wait until the program has ended; False if it has to be given up."""
        return running.wait(pid, self.program.time_limit_s, is_pending)

    def crash(self) -> None:
        """End the server as a power cut would, and let it recover."""
        if self._crash is None:
            raise RuntimeError("this server's life is not ours")
        if self._own is not None:
            self._own.close()
        self._crash()

    def _run(self, dsn: str, proxy: Proxy | None = None, struck: _Struck | None = None) -> Ended:
        with tempfile.TemporaryFile() as output:
            pid = running.launch(
                self.program.command,
                running.environment_for(dsn),
                self._work,
                output.fileno(),
                is_forked=self._is_forked,
                in_child=proxy.close_inherited if proxy is not None else lambda: None,
            )
            if struck is not None:
                struck.pid = pid
            if proxy is not None:
                proxy.start()
            is_pending = (lambda: struck.is_pending(proxy)) if struck is not None else (lambda: False)
            is_over = self.wait_for(pid, is_pending)
            running.signal_group(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            return Ended(code if is_over else None, output.read().decode("utf-8", "replace"))


@dataclass(slots=True)
class _Struck:
    """A fault on its way: what to do when its point is met, and what is left to do once the server has answered.

    What is done after the server has acted and before the program knows: the program is stopped at the point, and goes
    on, or dies, only when the answer has been withheld.
    """

    cage: Cage
    fault: str
    when: str
    pid: int = 0
    is_due: bool = False
    is_finished: bool = False

    def meet(self, boundary: Boundary) -> Action:
        """Do what has to be done before the message is passed on; return what the proxy has to do."""
        is_after = self.when == "after"
        if self.fault == "serialization":
            return at.error_before("40001")
        if self.fault == "terminate":
            return at.TERMINATE_AFTER if is_after else at.TERMINATE_BEFORE
        if self.fault in ("kill", "crash") and is_after:
            running.signal_group(self.pid, signal.SIGSTOP)
            self.is_due = True
            return at.kill_client_after(self._peer) if self.fault == "kill" else at.CUT_AFTER
        if self.fault == "kill":
            running.signal_group(self.pid, signal.SIGKILL)
            return at.kill_client_before(self._peer)
        if self.fault == "crash":
            self.cage.crash()
        return at.CUT_AFTER if is_after else at.CUT_BEFORE

    @property
    def _peer(self) -> int | None:
        """The process to kill beside the group: that at the socket, which over TCP nobody knows."""
        return self.pid if self.cage.listen_dir is None else None

    def is_pending(self, proxy: Proxy | None) -> bool:
        """Finish a fault whose answer has been withheld by now; say whether one is, or may be, still to come."""
        if self.is_finished or proxy is None or self.when != "after" or self.fault not in ("kill", "crash"):
            return False
        if not self.is_due or not proxy.fired:
            return True
        self.is_finished = True
        if self.fault == "crash":
            self.cage.crash()
        running.signal_group(self.pid, signal.SIGKILL if self.fault == "kill" else signal.SIGCONT)
        return False
