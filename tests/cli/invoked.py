"""The command ``pgonce`` as a process of its own, on the test's database and on nobody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A command of a test ends within a few seconds, unless it waits for something that never comes.
COMMAND_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Read its standard output as one JSON document."""
        return json.loads(self.out)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without anything that names a database."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG") and name != "DATABASE_URL"}
    return kept | dict(extra or {})


@dataclass(frozen=True, slots=True)
class Command:
    """Runs ``pgonce`` in a folder, on a database; nothing it says may be a traceback."""

    dsn: str
    folder: Path

    def __call__(self, *words: str, stdin: bytes = b"", on_database: bool = True) -> Ended:
        """Run a command to its end."""
        with self.started(*words, on_database=on_database) as process:
            out, err = process.communicate(stdin, timeout=COMMAND_S_MAX)
        return self.ended(process, out, err)

    def started(self, *words: str, on_database: bool = True) -> subprocess.Popen[bytes]:
        """Start a command."""
        place = ("--dsn", self.dsn) if on_database else ()
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "pgonce", *words, *place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=environment(),
        )

    @staticmethod
    def ended(process: subprocess.Popen[bytes], out: bytes, err: bytes) -> Ended:
        """Tell how a process ended; a traceback is never an answer."""
        found = Ended(process.returncode, out.decode(), err.decode())
        assert "Traceback" not in found.err, found.err
        return found

    def csv(self, *rows: str, name: str = "in.csv", header: str = "id,amount,note") -> str:
        """Write a file and return its name."""
        (self.folder / name).write_text("\n".join((header, *rows)) + "\n")
        return name
