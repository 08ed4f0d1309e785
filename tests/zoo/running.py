"""Start a program of the zoo in its working folder: as a process of its own, or in a fork, which is much faster."""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import runpy
import select
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from zoo.catalogue import NODE_MODULES

# How often to look whether a fault that waits for the server's answer has happened.
LOOK_S = 0.002

# What a fork finds imported already, beside this module's own imports.
_IMPORTED = {
    "python:asyncpg": ("asyncpg", "asyncio"),
    "python:django": ("django.conf", "django.db.models", "django.db.backends.postgresql.base", "django.apps"),
    "python:sqlalchemy": ("sqlalchemy.orm", "sqlalchemy.dialects.postgresql.psycopg"),
}

# Debian's /usr/bin/psql is a script that looks for this one, and takes ten times as long.
_DEBIANS_PSQL = "/usr/lib/postgresql/*/bin"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended; None as its code means that it was given up at the limit."""

    code: int | None
    output: str


def import_ahead(needs: tuple[str, ...]) -> None:
    """Import what programs with these needs will import, so that their forks do not have to."""
    for need in needs:
        for module in _IMPORTED.get(need, ()):
            importlib.import_module(module)


def launch(
    command: tuple[str, ...],
    environment: dict[str, str],
    folder: Path,
    output: int,
    *,
    is_forked: bool,
    in_child: Callable[[], None],
) -> int:
    """Start a program in a session of its own, writing into ``output``; return its pid, which the caller reaps.

    ``in_child`` is called in a forked child before anything else.
    """
    if not is_forked:
        process = subprocess.Popen(
            command_of(command),
            cwd=folder,
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
            in_child()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            code = _be_the_program(command)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    return pid


def _be_the_program(command: tuple[str, ...]) -> int:
    """Run a Python program in this process, which was forked for it; return its exit code."""
    warnings.simplefilter("ignore")
    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
    try:
        if command[0] == "pgonce":
            from pgonce.cli.main import main

            sys.argv = list(command)
            main()
        else:
            sys.argv = list(command[1:])
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def wait(pid: int, limit_s: float, is_pending: Callable[[], bool]) -> bool:
    """Wait until a process has ended; False at the limit. ``is_pending`` is called often until it says no."""
    deadline = time.monotonic() + limit_s
    ended = os.pidfd_open(pid)
    try:
        while is_pending() and time.monotonic() < deadline:
            if select.select([ended], [], [], LOOK_S)[0]:
                return True
        return bool(select.select([ended], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(ended)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a program's process group, if there still is one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


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
    kept["PATH"] = os.pathsep.join([*sorted(glob.glob(_DEBIANS_PSQL), reverse=True), kept.get("PATH", os.defpath)])
    node = os.pathsep.join(filter(None, (str(NODE_MODULES), os.environ.get("NODE_PATH"))))
    return {**kept, **here, "NODE_PATH": node, "PYTHONUNBUFFERED": "1"}
