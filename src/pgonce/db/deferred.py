"""Signals around COMMIT: the first one waits for its answer, the second one does not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any]


class Pending:
    """Signals that were put off, in the order in which they came, with the handlers that they are for."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self._received: list[tuple[int, FrameType | None]] = []

    def put_off(self, number: int, frame: FrameType | None) -> None:
        """Keep the first signal for later; with the second one both are delivered at once."""
        self._received.append((number, frame))
        if len(self._received) > 1:
            self.deliver()

    def deliver(self) -> None:
        """Call the handlers of what was put off, each once; raise what they raise. Safe to re-run: none is left."""
        while self._received:
            number, frame = self._received.pop(0)
            self.handlers[number](number, frame)


@contextmanager
def deferred_signals() -> Iterator[Pending]:
    """Put a Python handler's first call off until it is delivered, which is up to the caller, after the block.

    An exception that a handler raises inside COMMIT, as Ctrl-C does, would leave its outcome unknown without need. Only
    the main thread has handlers; elsewhere nothing is done.
    """
    pending = Pending()
    if threading.current_thread() is not threading.main_thread():
        yield pending
        return
    try:
        for number in NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler):
                pending.handlers[number] = handler
                signal.signal(number, pending.put_off)
        yield pending
    finally:
        _restore(list(pending.handlers.items()))


def _restore(handlers: Sequence[tuple[int, Handler]]) -> None:
    """Put the handlers back, all of them, also if one that is back already is called meanwhile and raises."""
    if handlers:
        try:
            signal.signal(*handlers[0])
        finally:
            _restore(handlers[1:])
