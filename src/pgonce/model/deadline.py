"""A deadline on a clock that is handed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock, in seconds; ``clock`` gives the present one."""

    at_s: float
    clock: Callable[[], float]

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float]) -> Deadline:
        """Make the deadline that lies this many seconds ahead."""
        return cls(at_s=clock() + seconds, clock=clock)

    def left_s(self) -> float:
        """Return the seconds that are left; never below zero."""
        return max(0.0, self.at_s - self.clock())

    @property
    def passed(self) -> bool:
        """Say whether nothing is left."""
        return self.left_s() <= 0.0
