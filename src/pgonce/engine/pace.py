"""How many rows the next chunk takes: the number asked for, or fewer where a chunk would take too long."""

from __future__ import annotations

from dataclasses import dataclass

from pgonce.model.limits import Limits

# A slow chunk halves the next one at least, and a quick one doubles it at most: one odd chunk should not swing the
# size.
STEP_MAX = 2.0


@dataclass(slots=True)
class Pace:
    """Keeps chunks near ``limits.chunk_seconds``. Results do not depend on it."""

    limits: Limits
    _rows: int = 0

    def __post_init__(self) -> None:
        self._rows = self.limits.rows

    def rows(self) -> int:
        """Say how many rows the next chunk may have."""
        return self._rows

    def took(self, seconds: float) -> None:
        """Learn from how long a chunk took."""
        factor = min(max(self.limits.chunk_seconds / max(seconds, 1e-6), 1 / STEP_MAX), STEP_MAX)
        self._rows = max(1, min(self.limits.rows, int(self._rows * factor)))
