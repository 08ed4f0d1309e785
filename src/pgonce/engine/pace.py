"""How many rows the next chunk takes: the number asked for, or fewer where a chunk would take too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgonce.model.limits import Limits

# A slow chunk halves the next one at least, and a quick one doubles it at most: one odd chunk should not swing the
# size.
STEP_MAX = 2.0


@dataclass(slots=True)
class Pace:
    """Keeps chunks near ``limits.chunk_seconds``; a context around each of them. Results do not depend on it."""

    limits: Limits
    clock: Callable[[], float]
    _rows: int = 0
    _began_s: float = 0.0

    def __post_init__(self) -> None:
        self._rows = self.limits.rows

    def rows(self) -> int:
        """Say how many rows the next chunk may have."""
        return self._rows

    def __enter__(self) -> None:
        self._began_s = self.clock()

    def __exit__(self, *_: object) -> None:
        took_s = max(self.clock() - self._began_s, 1e-6)
        factor = min(max(self.limits.chunk_seconds / took_s, 1 / STEP_MAX), STEP_MAX)
        self._rows = max(1, min(self.limits.rows, int(self._rows * factor)))
