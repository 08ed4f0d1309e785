"""Drop what a crash test made on a server that is not ours, when the test is gone. Runs as a process of its own.

It is started before the first database is made, in a session of its own, and waits for the end of its standard input,
which comes when the test closes it or is killed. Nothing else makes it stop: signals to end are ignored. Then it drops
every database that bears the test's token, removes the test's folder, and says what it could not drop.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from pgonce.crashtest import dropping
from pgonce.errors import ConfigurationError
from pgonce.server.place import clean_environment

# The server may just be restarting, or a backend of the killed program may still be at a long statement.
CLEAR_S_MAX = 60.0
AGAIN_S = 0.2

# Two seconds for a process to end that still writes into a folder which is to vanish.
REMOVALS_MAX = 40


class Janitor:
    """The test's end of it."""

    def __init__(self, *, dsns: list[str], token: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-m", "pgonce.crashtest.janitor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env=clean_environment(os.environ),
            start_new_session=True,
        )
        assert self._process.stdin is not None, "it was asked for"
        assert self._process.stdout is not None, "it was asked for"
        self._ends, self._says = self._process.stdin, self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._ends.write(json.dumps({"dsns": dsns, "token": token, "folder": str(folder)}).encode() + b"\n")
            self._ends.flush()
        if self._says.readline() != b"ready\n":
            self.finish()
            raise ConfigurationError(
                f"the process that would clear up on the server cannot be started with {sys.executable!r}, so nothing "
                "was made there"
            )

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def finish(self) -> list[str]:
        """Let it clear up, and return the databases that it could not drop; an answer that does not come is one."""
        with contextlib.suppress(BrokenPipeError):
            self._ends.close()
        said = self._says.read()
        self._says.close()
        self._process.wait()
        try:
            left: list[str] = json.loads(said)
        except ValueError:
            return ["(nobody could look)"]
        return left


def clear(dsns: list[str], token: str) -> list[str]:
    """Drop every database of a token from one of these places; return what is left after some time."""
    until = time.monotonic() + CLEAR_S_MAX
    left = ["(the server could not be reached)"]
    while True:
        for dsn in dsns:
            with contextlib.suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True) as connection:
                left = dropping.names(connection, token)
                for name in left:
                    with contextlib.suppress(psycopg.Error):  # the others are dropped all the same
                        dropping.drop(connection, name, dsn=dsn)
                left = dropping.names(connection, token)
                if not left and not dropping.is_alive(connection, token):
                    return []
        if time.monotonic() > until:
            return left
        time.sleep(AGAIN_S)


def _remove(folder: Path) -> None:
    for _ in range(REMOVALS_MAX):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        if not folder.exists():
            return
        time.sleep(0.05)


def main() -> int:
    """Wait for the end of standard input, clear up, and say what is left."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    task: dict[str, Any] = json.loads(line)
    _tell("ready")
    sys.stdin.buffer.read()
    left = clear(task["dsns"], task["token"])
    _remove(Path(task["folder"]))
    _tell(json.dumps(left))
    return 1 if left else 0


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
