"""A session's time as the client sees it: whatever waits longer than its limit loses its connection.

The server's own time-outs come first. They cannot help where the server does not run: a frozen machine, a network that
swallows packets, a COMMIT that waits for a standby. Then the socket is shut down here; the wait ends with an error
without SQLSTATE, and the phase decides what it means.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

GRACE_S = 3.0
"""The transaction's time-out on the server comes two seconds after the deadline; it should be the one that is seen."""
POLL_S = 0.1
"""How often the watchdog looks; it costs some microseconds."""


class Watchdog:
    """Watches one wait at a time, in a thread that begins with the first one and ends with ``close``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limit_s: float | None = None
        self._descriptor = -1
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = 0
        self.cut = False
        """Whether the last wait that was watched lasted too long, and lost its connection."""

    @contextlib.contextmanager
    def watching(self, descriptor: int, seconds: float) -> Iterator[None]:
        """Shut the socket down if the block lasts longer than this and the grace."""
        self._begin()
        own = os.dup(descriptor)  # the number of a socket that was closed meanwhile may be another one's
        try:
            with self._lock:
                self._descriptor, self._limit_s = own, time.monotonic() + seconds + GRACE_S
                self.cut = False
            yield
        finally:
            self.release()
            os.close(own)

    def extend(self, seconds: float) -> None:
        """Let what is watched now last this long from now, and the grace."""
        with self._lock:
            if self._limit_s is not None:
                self._limit_s = time.monotonic() + seconds + GRACE_S

    def cut_now(self) -> None:
        """Shut down the socket of what is watched now, whatever time it has left. Safe to re-run: yes."""
        with self._lock:
            if self._limit_s is not None:
                self._limit_s, self.cut = None, True
                _shut_down(self._descriptor)

    def release(self) -> None:
        """Watch nothing more. Safe to re-run: yes."""
        with self._lock:
            self._limit_s = None

    def close(self) -> None:
        """End the thread. Safe to re-run: a later wait begins another one."""
        self.release()
        self._closed.set()
        self._thread = None

    def _begin(self) -> None:
        """Start the thread; a forked child has none of its parent's."""
        if self._thread is not None and self._process == os.getpid():
            return
        self._closed, self._lock, self._process = threading.Event(), threading.Lock(), os.getpid()
        self._thread = threading.Thread(target=self._watch, args=(self._closed,), name="pgonce-watchdog", daemon=True)
        self._thread.start()

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(POLL_S):
            with self._lock:
                if self._limit_s is not None and time.monotonic() > self._limit_s:
                    self._limit_s, self.cut = None, True
                    _shut_down(self._descriptor)


def _shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)
