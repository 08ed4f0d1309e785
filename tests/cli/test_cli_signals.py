"""The handler of the first signal: it may come at any moment, also while the very stream is written to that it uses."""

from __future__ import annotations

import subprocess
import sys

INSIDE_A_WRITE = """
import io, os, signal, sys
from pgonce.cli.signals import stop_on_signals

class Raw(io.RawIOBase):
    def writable(self):
        return True

    def fileno(self):
        return 2

    def write(self, data):
        signal.raise_signal(signal.SIGTERM)
        return os.write(2, data)

sys.stderr = io.TextIOWrapper(io.BufferedWriter(Raw()), write_through=True)
with stop_on_signals() as interrupted:
    sys.stderr.write("cannot connect yet\\n")
    sys.stderr.flush()
    sys.exit(0 if interrupted() else 3)
"""


def test_a_signal_inside_a_write_to_standard_error_is_heard_and_breaks_nothing() -> None:
    """L6: a stream cannot be entered a second time; the command would end with a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", INSIDE_A_WRITE], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "stopping after this chunk" in done.stderr
    assert "cannot connect yet" in done.stderr
