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

    def at_most(self, other: Deadline | None) -> Deadline:
        """Return the earlier of the two; this one if there is no other."""
        return self if other is None or self.at_s <= other.at_s else other

    def left_s(self) -> float:
        """Return the seconds that are left; never below zero."""
        return max(0.0, self.at_s - self.clock())

    @property
    def passed(self) -> bool:
        """Say whether nothing is left."""
        return self.left_s() <= 0.0
