"""Read the next chunk while the server works on this one.

The reader has a thread of its own and is at most so many chunks ahead; it ends with the block, whatever ended that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

# One chunk is read while one is written. More would only take memory: the slower of the two decides.
CHUNKS_AHEAD = 1


class _Ended(Exception):
    """There is nothing more; the cause is what the reader ended with, none if that was the end of the input."""


@contextmanager
def reading_ahead(source: Iterator[Item], *, ahead: int = CHUNKS_AHEAD) -> Iterator[Iterator[Item]]:
    """Iterate over ``source`` in another thread, ``ahead`` items before the block that takes them.

    What the source raises is raised where its next item would have come. Leaving the block ends the thread, after the
    item that it is at.
    Safe to re-run: with another iterator.
    """
    items: SimpleQueue[Item | _Ended] = SimpleQueue()
    room, stopped = threading.Semaphore(ahead), threading.Event()

    def read() -> None:
        ended = _Ended()
        try:
            while room.acquire() and not stopped.is_set():
                items.put(next(source))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where the item is asked for
            ended.__cause__ = error
        items.put(ended)

    def taken() -> Iterator[Item]:
        while not isinstance(item := items.get(), _Ended):
            room.release()
            yield item
            del item
        if item.__cause__ is not None:
            raise item.__cause__

    thread = threading.Thread(target=read, name="pgonce-reader", daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        stopped.set()
        room.release()
        thread.join()
