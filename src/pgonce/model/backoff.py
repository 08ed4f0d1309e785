"""How long to wait before the next try: doubling, capped, with full jitter.

Full jitter (a uniform draw from zero to the doubled step) spreads workers that failed together better than a fixed
step does; see Marc Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgonce.errors import ConfigurationError

FIRST_S = 0.01
"""The first step: longer than a conflicting transaction of one chunk usually still needs, too short to be noticed."""

FACTOR = 2.0
"""Each step is twice the one before."""

CAP_S = 1.0
"""The longest step: a server that comes back is used again within a second."""


def read_backoff(text: str) -> Backoff:
    """Read ``FIRST`` or ``FIRST,CAP`` in seconds; a first step above the usual cap is its own.

    Raises ConfigurationError for what is no such number, or cannot be used.
    """
    try:
        steps = [float(part) for part in text.split(",")]
    except ValueError:
        steps = []
    if len(steps) not in (1, 2):
        raise ConfigurationError(f"--backoff {text}: write FIRST or FIRST,CAP, in seconds, like 0.05,2")
    return Backoff(first_s=steps[0], cap_s=steps[1] if len(steps) == 2 else max(CAP_S, steps[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The steps between tries. Raises ConfigurationError if they could not grow, or would never end.

    Safe to re-run: holds no state; the number of the attempt and the randomness are handed in.
    """

    first_s: float = FIRST_S
    factor: float = FACTOR
    cap_s: float = CAP_S

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.cap_s < float("inf") and 1 < self.factor < float("inf")):
            raise ConfigurationError(
                f"waits from {self.first_s} s by {self.factor} up to {self.cap_s} s cannot be used; "
                "the first must be above 0 and not above the last, and the factor above 1"
            )

    def ceiling_s(self, attempt: int) -> float:
        """Give the longest wait in seconds after the attempt of that number, counted from 1."""
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1, not {attempt}")
        step_s = self.first_s
        for _ in range(attempt - 1):
            step_s *= self.factor
            if step_s >= self.cap_s:
                return self.cap_s
        return step_s

    def delay_s(self, attempt: int, random: Callable[[], float]) -> float:
        """Give the wait in seconds after the attempt of that number; ``random`` draws uniformly from 0 up to 1."""
        return self.ceiling_s(attempt) * random()
