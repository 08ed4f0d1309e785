"""SIGINT and SIGTERM: the first ends the run after the chunk in hand, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

STOPPING = b"pgonce: stopping after this chunk; once more to stop now. Both are safe to run again.\n"

_received: list[int] = []


def received_signal() -> int | None:
    """Return the number of the first signal that asked the command to stop, if any did."""
    return _received[0] if _received else None


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Catch SIGINT and SIGTERM while the body runs; what is yielded says whether one came.

    The second ends the process at once, without clean-up: an open transaction dies with its connection, and what was
    committed stays. Safe to re-run: both are.
    """

    def handle(number: int, _frame: object) -> None:
        if _received:
            os._exit(128 + number)
        _received.append(number)
        with suppress(OSError, ValueError, AttributeError):  # nobody may be listening any more
            # Not through the stream: the signal may have come while it is being written to, which it would not bear.
            os.write(sys.stderr.fileno(), STOPPING)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(_received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
