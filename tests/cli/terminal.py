"""Runs the command ``pgonce`` as a user does: a process of its own, with nothing configured but the database named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A command of these tests takes half a second; one that takes a minute hangs.
COMMAND_S_MAX = 60


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Terminal:
    """A folder and a database to run commands in."""

    dsn: str
    folder: Path

    def pgonce(self, *words: str, stdin: str = "") -> Done:
        """Run ``pgonce WORDS --dsn DSN`` in the folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "DATABASE_URL"))}
        done = subprocess.run(
            [sys.executable, "-m", "pgonce", *words, "--dsn", self.dsn],
            cwd=self.folder,
            env=kept,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def run(self, name: str, text: str | None = None, *options: str) -> Done:
        """Write a file, unless it is there, and apply it under the job ``pay``, key ``id``, amount ``amount``."""
        if text is not None:
            (self.folder / name).write_text(text, encoding="utf-8")
        return self.pgonce("run", name, "--job", "pay", "--key", "id", "--amount", "amount", *options)
