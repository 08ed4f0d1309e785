"""Processes that use a server beside the test's own, and what to wait for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pgonce import server as embedded
from pgonce.server import place as places
from pgonce.server import watch

USE = """
import dataclasses, json, sys
from pathlib import Path
from pgonce import server
with server.{call} as used:
    fields = ("pid", "dsn", "pgdata", "socket_dir") if "{call}".startswith("running") else ()
    told = {{name: str(getattr(used, name)) for name in fields}} or {{
        "pid": str(used.postmaster_pid), "dsn": used.dsn, "pgdata": str(used.pgdata), "folder": str(used.folder)}}
    print(json.dumps(told), flush=True)
    sys.stdin.read()
"""
WAIT_S_MAX = 30.0


def until(happened: Callable[[], object]) -> None:
    """Wait for something that must happen, and fail when it does not."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Tell whether a process has ended (one that nobody has waited for yet has ended too)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Process:
    """Another process that uses a server until it is told to leave or is killed."""

    def __init__(self, call: str, *, environment: dict[str, str] | None = None, own_session: bool = False) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", USE.format(call=call)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
            start_new_session=own_session,
        )
        self._told: dict[str, str] = {}

    @property
    def told(self) -> dict[str, str]:
        """Return what the process says of its server, waiting for it to be up."""
        if not self._told:
            assert self.popen.stdout is not None
            line = self.popen.stdout.readline()
            assert line, "the process ended before its server was up"
            self._told = json.loads(line)
        return self._told

    @property
    def server_pid(self) -> int:
        return int(self.told["pid"])

    def leave(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.popen.wait(WAIT_S_MAX) == 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.popen.send_signal(number)
        self.popen.wait(WAIT_S_MAX)

    def close(self) -> None:
        if self.popen.poll() is None:
            self.kill()
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        self.popen.stdout.close()


@contextlib.contextmanager
def cleaned(home: Path) -> Iterator[Path]:
    """Leave no server of this home behind, nor its place elsewhere when we are root."""
    try:
        yield home
    finally:
        place = places.locate(home)
        if place.folder.exists():
            embedded.unpin(home, now=True)
            until(lambda: not watch.is_up(place.folder))
            shutil.rmtree(place.folder)
        with contextlib.suppress(OSError):
            places.ROOTS_BASE.rmdir()
