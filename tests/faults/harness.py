"""Fail a program at every boundary with every fault, run it again, and compare the end with a clean run.

The oracle is the state, not the program's word: ``fingerprint`` must equal the clean run's, and ``check`` must pass.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psycopg

from pgonce.crashtest import boundary as at
from pgonce.crashtest.boundary import PASS, Action, Boundary, Deed, Fired
from pgonce.crashtest.proxy import Proxy

# A run of a test's program takes well under a second; one that takes this long waits for something that never comes.
RUN_S_MAX = 30.0

# A second start may meet what the first left behind; a third must not.
RERUNS_MAX = 3

# Sessions of a dead client end within milliseconds, once their statement is done.
QUIET_S_MAX = 10.0

# The end of a program's output is where it says what went wrong.
OUTPUT_BYTES_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A named action of the proxy."""

    name: str
    action: Action


ERROR_40001 = Fault("error 40001", at.error_before("40001"))
CUT_BEFORE = Fault("cut before", at.CUT_BEFORE)
CUT_AFTER = Fault("cut after", at.CUT_AFTER)
KILL_BEFORE = Fault("kill -9 before", at.kill_client_before())
KILL_AFTER = Fault("kill -9 after", at.kill_client_after())
TERMINATE_BEFORE = Fault("terminate before", at.TERMINATE_BEFORE)
FAULTS = (ERROR_40001, CUT_BEFORE, CUT_AFTER, KILL_BEFORE, KILL_AFTER, TERMINATE_BEFORE)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code (a signal as a negative number) and all it wrote."""

    code: int
    output: str
    is_timed_out: bool = False


# Starts a program against a dsn, writing into a file, and returns its pid, the leader of a process group of its own.
# What is handed in last is to be called in a forked child.
Launch = Callable[[str, IO[bytes], Callable[[], None]], int]


def program(argv_of: Callable[[str], Sequence[str]], *, env: dict[str, str] | None = None) -> Launch:
    """Launch a command whose arguments are made from the dsn; ``env`` is added to this process's environment."""

    def launch(dsn: str, output: IO[bytes], _: Callable[[], None]) -> int:
        process = subprocess.Popen(
            list(argv_of(dsn)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
        process.returncode = 0  # reaped by its pid below, not by this object
        return process.pid

    return launch


def forked(function: Callable[[str], int | None]) -> Launch:
    """Launch a function of the dsn in a forked child; what it returns is the exit code, an exception is 1."""

    def launch(dsn: str, output: IO[bytes], in_child: Callable[[], None]) -> int:
        with warnings.catch_warnings():
            # The child only runs the function and leaves by _exit, so threads it does not have cannot hold it up.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            for fd in (1, 2):
                os.dup2(output.fileno(), fd)
            in_child()
            code = function(dsn) or 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    return launch


def run_limited(
    launch: Launch,
    dsn: str,
    *,
    limit_s: float = RUN_S_MAX,
    in_child: Callable[[], None] = lambda: None,
    started: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a program to its end, or to the limit; nothing of its process group survives."""
    with tempfile.TemporaryFile() as output:
        pid = launch(dsn, output, in_child)
        try:
            started()
            is_ended = _wait_dead(pid, limit_s)
        finally:
            code = _reap_group(pid)
        output.seek(0)
        return Ended(code, output.read().decode("utf-8", "replace"), is_timed_out=not is_ended)


def kill_at(argv: Sequence[str], condition: Callable[[], bool], *, limit_s: float = RUN_S_MAX) -> Ended:
    """Start a command, SIGKILL its process group as soon as ``condition`` is true, and reap it.

    The code is -9 if it was killed; if it ended first, its own. Raises TimeoutError after ``limit_s`` seconds.
    """
    with tempfile.TemporaryFile() as output:
        pid = program(lambda _: argv)("", output, lambda: None)
        deadline = time.monotonic() + limit_s
        try:
            while not condition() and not _wait_dead(pid, 0):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"neither ended nor came to be killed within {limit_s} s: {argv}")
        finally:
            code = _reap_group(pid)
        output.seek(0)
        return Ended(code, output.read().decode("utf-8", "replace"))


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = QUIET_S_MAX) -> None:
    """Ask until the condition is true; raises TimeoutError saying what was waited for."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s} s in vain: {what}")


def wait_until_blocked(watcher: psycopg.Connection, pid: int | None = None, *, limit_s: float = QUIET_S_MAX) -> int:
    """Wait until this backend, or any one of the database, is blocked by another session; return its pid.

    ``watcher`` is an autocommit connection to the same database, for no other use meanwhile.
    """
    found: list[int] = []

    def is_blocked() -> bool:
        found[:] = [
            row[0]
            for row in watcher.execute(
                "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                " and cardinality(pg_blocking_pids(pid)) > 0 and pid = coalesce(%s::integer, pid)",
                (pid,),
            )
        ]
        return bool(found)

    wait_until(is_blocked, f"session {pid or '(any)'} to be blocked by another one", limit_s=limit_s)
    return found[0]


def wait_until_quiet(dsn: str, *, limit_s: float = QUIET_S_MAX) -> None:
    """Wait until no other session is left in the database: the server has noticed that its clients are gone."""
    with psycopg.connect(dsn, autocommit=True) as watcher:
        wait_until(
            lambda: (
                watcher.execute(
                    "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                    " and backend_type = 'client backend'"
                ).rowcount
                == 0
            ),
            "the sessions of ended clients to be gone",
            limit_s=limit_s,
        )


def _wait_dead(pid: int, limit_s: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], limit_s)[0])
    finally:
        os.close(fd)


def _reap_group(pid: int) -> int:
    """SIGKILL what is left of a process group and return the exit code of its leader, which is not reaped yet."""
    for kill in (os.killpg, os.kill):  # a child that is not yet the leader of its group has only its pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault after which the promise did not hold."""

    boundary: Boundary
    fault: Fault
    reason: str

    def __str__(self) -> str:
        point = self.boundary
        place = f"{point.connection}.{point.nth} {point.kind.value} {point.statement!r}"
        return f"{self.fault.name} at {place}: {self.reason}"


@dataclass(slots=True)
class Summary:
    """What a loop did: faults that happened by name, points never reached, what was seen, and what failed."""

    points: list[Boundary]
    tried: Counter[str] = field(default_factory=Counter)
    unreached: list[tuple[Boundary, Fault]] = field(default_factory=list)
    sometimes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def assert_green(self) -> None:
        """Raise AssertionError naming every failure, or if nothing was tried."""
        listed = "\n".join(str(failure) for failure in self.failures)
        assert not self.failures, f"{len(self.failures)} of {self.tried.total()} faults broke a promise:\n{listed}"
        assert self.tried.total(), "inconclusive: no fault happened"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLoop:
    """The n-th point loop: each boundary of a clean run, times each fault.

    ``make_state`` makes a fresh database and returns a direct dsn; ``drop_state`` gives it back. ``accepted`` are the
    exit codes that end the re-runs; a faulted run that ends so must be done. ``judge`` says what is wrong with how any
    run ended, given the clean run's fingerprint. ``sample`` limits the boundaries that are not COMMITs, chosen by
    ``seed``; ``wants`` chooses pairs. ``folder`` (short: it holds sockets) has mode 0700.
    """

    make_state: Callable[[], str]
    command: Launch
    check: Callable[[str], None]
    fingerprint: Callable[[str], object]
    folder: Path
    drop_state: Callable[[str], None] = lambda _: None
    faults: Sequence[Fault] = FAULTS
    accepted: frozenset[int] = frozenset({0})
    limit_s: float = RUN_S_MAX
    sample: int | None = None
    seed: int = 0
    wants: Callable[[Boundary, Fault], bool] = lambda _boundary, _fault: True
    judge: Callable[[Ended, object], str] = lambda _ended, _expected: ""

    def run(self) -> Summary:
        """Run the whole loop; AssertionError only if the clean run itself is wrong."""
        points, expected = self._clean()
        summary = Summary(points)
        for boundary in self._chosen(points):
            for fault in self.faults:
                is_possible = boundary.can_fail or fault.action.deed is not Deed.ERROR_BEFORE
                if not is_possible or not self.wants(boundary, fault):
                    continue
                with self._state() as dsn:
                    self._try(boundary, fault, dsn, expected, summary)
        return summary

    def _clean(self) -> tuple[list[Boundary], object]:
        with self._state() as dsn:
            ended, through = self._through_proxy(dsn, lambda _: PASS)
            assert ended.code in self.accepted, f"the clean run ended with {ended.code}: {ended.output}"
            expected = self.fingerprint(dsn)
            self.check(dsn)
            reason = self.judge(ended, expected)
            assert not reason, f"the clean run: {reason}"
            again = run_limited(self.command, dsn, limit_s=self.limit_s)
            assert again.code in self.accepted, f"the clean run's re-run ended with {again.code}: {again.output}"
            assert self.fingerprint(dsn) == expected, "a second run without any fault changed the state"
            return through.log, expected

    def _chosen(self, points: Sequence[Boundary]) -> list[Boundary]:
        others = [boundary for boundary in points if not boundary.is_commit]
        if self.sample is None or len(others) <= self.sample:
            return points
        kept = random.Random(self.seed).sample(others, self.sample)
        return [boundary for boundary in points if boundary.is_commit or boundary in kept]

    @contextlib.contextmanager
    def _state(self) -> Iterator[str]:
        dsn = self.make_state()
        try:
            yield dsn
        finally:
            self.drop_state(dsn)

    def _through_proxy(self, dsn: str, on_boundary: Callable[[Boundary], Action]) -> tuple[Ended, Proxy]:
        through = Proxy.of_dsn(dsn, on_boundary=on_boundary, listen_dir=self.folder)
        through.open()
        with contextlib.ExitStack() as stack:
            stack.push(through.__exit__)
            ended = run_limited(
                self.command,
                through.dsn(dsn),
                limit_s=self.limit_s,
                in_child=through.close_inherited,
                started=through.start,
            )
        return ended, through

    def _try(self, boundary: Boundary, fault: Fault, dsn: str, expected: object, summary: Summary) -> None:
        armed = threading.Event()

        def on_boundary(reached: Boundary) -> Action:
            if armed.is_set() or (reached.connection, reached.nth) != (boundary.connection, boundary.nth):
                return PASS
            armed.set()
            return fault.action

        ended, through = self._through_proxy(dsn, on_boundary)
        if not through.fired:
            summary.unreached.append((boundary, fault))
            return
        summary.tried[fault.name] += 1
        summary.sometimes.update(_seen(through.fired[0], ended, self.accepted))
        reason = f"hung for {self.limit_s} s" if ended.is_timed_out else self._told_wrong(dsn, ended, expected)
        reason = reason or self._recovered(dsn, expected, summary)
        if reason:
            summary.failures.append(Failure(boundary, fault, f"{reason}; it said: {_tail(ended.output)}"))

    def _told_wrong(self, dsn: str, ended: Ended, expected: object) -> str:
        """Compare what the faulted run told with what is stored; return what is wrong, empty if nothing is."""
        reason = self.judge(ended, expected)
        if reason or ended.code not in self.accepted:
            return reason
        found = self.fingerprint(dsn)
        return "" if found == expected else f"it ended with {ended.code} and was not done: {_diff(found, expected)}"

    def _recovered(self, dsn: str, expected: object, summary: Summary) -> str:
        """Run again until it is done; return why the end is wrong, empty if it is right."""
        wait_until_quiet(dsn)
        for number in range(1, RERUNS_MAX + 1):
            again = run_limited(self.command, dsn, limit_s=self.limit_s)
            if reason := self.judge(again, expected):
                return f"re-run {number}: {reason}: {_tail(again.output)}"
            if again.code in self.accepted:
                break
        else:
            return f"still ends with {again.code} after {number} re-runs: {_tail(again.output)}"
        summary.sometimes["more than one re-run"] += number > 1
        found = self.fingerprint(dsn)
        if found != expected:
            return f"the end differs from the clean run's: {_diff(found, expected)}"
        try:
            self.check(dsn)
        except AssertionError as error:
            return f"check failed: {error}"
        return ""


def _seen(fired: Fired, ended: Ended, accepted: frozenset[int]) -> list[str]:
    """Name what one fault made happen, for the counters that say whether a campaign saw enough."""
    seen = ["the faulted run was well by itself" if ended.code in accepted else "the faulted run failed"]
    if fired.boundary.is_commit and fired.action.deed is not Deed.ERROR_BEFORE:
        is_committed = fired.action.deed.is_after and fired.answer == "COMMIT"
        seen.append("commit in doubt, committed" if is_committed else "commit in doubt, not committed")
    if ended.code == -signal.SIGKILL:
        seen.append("the client was killed")
    return seen


def _diff(found: object, expected: object) -> str:
    """Show two states; of two dictionaries only what differs."""
    if isinstance(found, dict) and isinstance(expected, dict):
        names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
        found, expected = ({name: state.get(name) for name in names} for state in (found, expected))
    return f"{found!r} instead of {expected!r}"


def _tail(output: str) -> str:
    return output[-OUTPUT_BYTES_SHOWN:].strip()
