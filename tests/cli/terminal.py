"""A terminal of the operator's tests: commands on one database, and the run that they look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.invoked import Command, Ended


@dataclass(frozen=True, slots=True)
class Terminal:
    """A folder and a database to run commands in."""

    dsn: str
    folder: Path

    def pgonce(self, *words: str, stdin: str = "") -> Ended:
        """Run ``pgonce WORDS --dsn DSN`` in the folder."""
        return Command(self.dsn, self.folder)(*words, stdin=stdin.encode())

    def run(self, name: str, text: str | None = None, *options: str) -> Ended:
        """Write a file, unless it is there, and apply it under the job ``pay``, key ``id``, amount ``amount``."""
        if text is not None:
            (self.folder / name).write_text(text, encoding="utf-8")
        return self.pgonce("run", name, "--job", "pay", "--key", "id", "--amount", "amount", *options)
