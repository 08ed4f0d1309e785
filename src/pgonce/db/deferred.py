"""Signals around COMMIT: the first one waits for its answer, the second one does not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Put a Python handler's first call off to the end of the block, and make it there, also if the block fails.

    An exception that a handler raises inside COMMIT, as Ctrl-C does, would leave its outcome unknown without need. The
    second signal is not put off. Only the main thread has handlers; elsewhere nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    before: dict[int, Callable[[int, FrameType | None], Any]] = {}
    for number in NUMBERS:
        handler = signal.getsignal(number)
        if callable(handler):
            before[number] = handler

    def handle(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))
        if len(received) > 1:
            before[number](number, frame)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if len(received) == 1:
            number, frame = received[0]
            before[number](number, frame)
