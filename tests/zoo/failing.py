"""Run a program of the zoo, fail it at one point through the proxy, run it again, and compare."""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from faults.harness import wait_until
from pgonce.crashtest import boundary as at
from pgonce.crashtest.boundary import PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.crashtest.wire import Kind
from zoo import books
from zoo.catalogue import FAULTS, NODE_MODULES, Program

RERUNS_MAX = 3

OUTPUT_BYTES_SHOWN = 1_000

# How often to look whether a fault that waits for the server's answer has happened.
LOOK_S = 0.002

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


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended; None as its code means that it was given up at the limit."""

    code: int | None
    output: str


@dataclass(slots=True)
class Watch:
    """Names the points of a run as they are met, and does something at one of them."""

    wanted: Place | None = None
    deed: Callable[[Boundary], Action] = lambda _: PASS
    met: list[Place] = field(default_factory=list)
    can_fail: list[bool] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __call__(self, boundary: Boundary) -> Action:
        name, kind = name_of(boundary), boundary.kind.value
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
            for need in program.needs:
                importlib.import_module(need.removeprefix("python:"))
        self._sockets = folder / "s"
        self._work = folder / "work"
        before = command_of(program.before_setup)
        sql = subprocess.run(before, check=True, capture_output=True, text=True).stdout if before else ""
        self._setup = sql + program.setup
        self.reset()
        self.base = books.look(self.own, program)
        ended, watch = self.through_proxy(Watch())
        if ended.code != 0:
            raise AssertionError(f"the clean run of {program.name} ended with {ended.code}: {ended.output}")
        self.clean = books.look(self.own, program)
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
        shutil.rmtree(self._work, ignore_errors=True)
        self.program.lay(self._work)

    def wait_until_quiet(self) -> None:
        """Wait until the program has no session any more, and the server has noticed that."""
        pid = self.own.info.backend_pid
        wait_until(
            lambda: self.own.execute(
                "select from pg_stat_activity where datname = current_database() and pid <> %s"
                " and backend_type = 'client backend'",
                (pid,),
            ).rowcount
            == 0,
            "the program's sessions to be gone",
        )

    def try_all(self, faults: tuple[str, ...]) -> Iterator[Tried]:
        """Try each fault at each point of the clean run."""
        for fault in faults:
            for when in FAULTS[fault]:
                for place, can_fail in self.points:
                    if fault != "serialization" or can_fail:
                        yield self.attempt(fault, when, place)

    def attempt(self, fault: str, when: str, place: Place) -> Tried:
        """Fail the program at a point, run it again until it ends well, and judge the end."""
        self.reset()
        ended, watch = self.through_proxy(Watch(place), fault, when)
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
        found = books.look(self.own, self.program)
        return books.verdict(self.base, self.clean, found), f"{story} {books.describe(self.clean, found)}"

    def through_proxy(self, watch: Watch, fault: str = "", when: str = "") -> tuple[Ended, Watch]:
        """Run the program through the proxy to its end, with a fault at the point that is watched for."""
        info = self.own.info
        socket = f"{info.host}/.s.PGSQL.{info.port}"
        proxy = Proxy(
            socket, on_boundary=watch, listen_dir=self._sockets, points=self._points, side_dsn=self.dsn
        )
        proxy.open()
        struck = _Struck(self, fault, when)
        watch.deed = struck.meet
        with contextlib.ExitStack() as stack:
            stack.push(proxy.__exit__)
            ended = self._run(proxy.dsn(self.dsn), proxy, struck)
            self.wait_until_quiet()
            struck.is_pending(proxy)
        return ended, watch

    def crash(self) -> None:
        """End the server as a power cut would, and let it recover."""
        if self._crash is None:
            raise RuntimeError("this server's life is not ours")
        if self._own is not None:
            self._own.close()
        self._crash()

    def _run(self, dsn: str, proxy: Proxy | None = None, struck: _Struck | None = None) -> Ended:
        with tempfile.TemporaryFile() as output:
            pid = self._launch(dsn, output.fileno(), proxy)
            if struck is not None:
                struck.pid = pid
            if proxy is not None:
                proxy.start()
            is_over = _wait(pid, self.program.time_limit_s, struck, proxy)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            return Ended(code if is_over else None, output.read().decode("utf-8", "replace"))

    def _launch(self, dsn: str, output: int, proxy: Proxy | None) -> int:
        environment = environment_for(dsn)
        if not self._is_forked:
            process = subprocess.Popen(
                command_of(self.program.command),
                cwd=self._work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            process.returncode = 0  # reaped by its pid, not by this object
            return process.pid
        with warnings.catch_warnings():
            # The child runs the program alone and leaves by _exit, so threads it does not have cannot hold it up.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                if proxy is not None:
                    proxy.close_inherited()
                os.dup2(output, 1)
                os.dup2(output, 2)
                code = self._be_the_program(environment)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        return pid

    def _be_the_program(self, environment: dict[str, str]) -> int:
        """Run the Python program in this process, which was forked for it."""
        warnings.simplefilter("ignore")
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(self._work)
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
        try:
            if self.program.command[0] == "pgonce":
                from pgonce.cli.main import main

                sys.argv = list(self.program.command)
                main()
            else:
                sys.argv = list(self.program.command[1:])
                runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as leaving:
            if isinstance(leaving.code, str):
                print(leaving.code, file=sys.stderr)
            return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        return 0


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
            _signal(self.pid, signal.SIGSTOP)
            self.is_due = True
            return at.kill_client_after() if self.fault == "kill" else at.CUT_AFTER
        if self.fault == "kill":
            _signal(self.pid, signal.SIGKILL)
            return at.kill_client_before()
        if self.fault == "crash":
            self.cage.crash()
        return at.CUT_AFTER if is_after else at.CUT_BEFORE

    def is_pending(self, proxy: Proxy | None) -> bool:
        """Finish a fault whose answer has been withheld by now; say whether one is, or may be, still to come."""
        if self.is_finished or proxy is None or self.when != "after" or self.fault not in ("kill", "crash"):
            return False
        if not self.is_due or not proxy.fired:
            return True
        self.is_finished = True
        if self.fault == "crash":
            self.cage.crash()
        _signal(self.pid, signal.SIGKILL if self.fault == "kill" else signal.SIGCONT)
        return False


def command_of(command: tuple[str, ...]) -> list[str]:
    """Put this interpreter in the place of ``python`` and ``pgonce``."""
    own = {"python": [sys.executable], "pgonce": [sys.executable, "-m", "pgonce"]}
    return [*own.get(command[0], list(command[:1])), *command[1:]] if command else []


def environment_for(dsn: str) -> dict[str, str]:
    """Make a program's environment: ours without any database's name in it, and the names of this one."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "PYTEST")) and name != "DATABASE_URL"
    }
    named = conninfo_to_dict(dsn)
    told = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}
    here = {variable: str(named[name]) for name, variable in told.items() if named.get(name)}
    node = os.pathsep.join(filter(None, (str(NODE_MODULES), os.environ.get("NODE_PATH"))))
    return {**kept, **here, "NODE_PATH": node, "PYTHONUNBUFFERED": "1"}


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _wait(pid: int, limit_s: float, struck: _Struck | None, proxy: Proxy | None) -> bool:
    """Wait until a process has ended, and finish a fault that waits for the server's answer; False at the limit."""
    deadline = time.monotonic() + limit_s
    ended = os.pidfd_open(pid)
    try:
        while struck is not None and struck.is_pending(proxy) and time.monotonic() < deadline:
            if select.select([ended], [], [], LOOK_S)[0]:
                return True
        return bool(select.select([ended], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(ended)
