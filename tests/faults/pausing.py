"""The command, stopping itself (SIGSTOP) between two chunks: python pausing.py LINE,LINE... run FILE ...

A test that freezes a run from outside may come too late on a busy machine. This one stops at the very moment when the
chunk that reaches a line was acknowledged, with no transaction open, until somebody sends SIGCONT.
"""

from __future__ import annotations

import os
import signal
import sys

import pgonce.cli.progress
from pgonce.cli.main import main
from pgonce.model.observer import Silent, Step

LINES = [int(line) for line in sys.argv.pop(1).split(",")]


class Pausing(Silent):
    """An observer that stops the process when a line is acknowledged."""

    def committed(self, step: Step) -> None:
        """Stop at the first line that is left."""
        if LINES and step.position.lines >= LINES[0]:
            LINES.pop(0)
            os.kill(os.getpid(), signal.SIGSTOP)


pgonce.cli.progress.Silent = Pausing
main()
