"""What a start tells while it goes on, to whoever wants to look. Looking cannot break a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pgonce.model.cursor import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One committed chunk: its rows by result, and the position after it."""

    position: Position
    rows: int
    applied: int
    already: int
    failed: int
    conflict: int
    rejected: int
    pending: int


class Observer(Protocol):
    """Hooks of a run. What they raise is swallowed; what they do takes the run's time."""

    def began(self, input_name: str, input_bytes: int, position: Position) -> None:
        """A start owns its run, and goes on from this position."""

    def committed(self, step: Step) -> None:
        """A chunk was committed."""

    def retried(self, sqlstate: str | None, reason: str) -> None:
        """A chunk's transaction was rolled back and is tried again."""


class Silent:
    """An observer that looks at nothing."""

    def began(self, input_name: str, input_bytes: int, position: Position) -> None:
        """Do nothing."""

    def committed(self, step: Step) -> None:
        """Do nothing."""

    def retried(self, sqlstate: str | None, reason: str) -> None:
        """Do nothing."""
