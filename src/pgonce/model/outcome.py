"""Results of rows, counted: how many, and worth how much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

RESULTS = ("applied", "adopted", "already", "failed", "conflict", "rejected", "pending")


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of rows and the sum of their amounts in cents."""

    rows: int = 0
    cents: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, self.cents + other.cents)


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows of a run or a start by their result. ``read`` is the control total of the input: all usable amounts."""

    read: Tally = field(default_factory=Tally)
    applied: Tally = field(default_factory=Tally)
    adopted: Tally = field(default_factory=Tally)
    already: Tally = field(default_factory=Tally)
    failed: Tally = field(default_factory=Tally)
    conflict: Tally = field(default_factory=Tally)
    rejected: Tally = field(default_factory=Tally)
    pending: Tally = field(default_factory=Tally)

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[Any, ...]]) -> Counts:
        """Gather (result, rows, cents) triples, several of which may name the same result."""
        sums: dict[str, Tally] = {}
        for result, count, cents in rows:
            name = "read" if result == "rows" else result
            sums[name] = sums.get(name, Tally()) + Tally(int(count), int(cents))
        return cls(**sums)

    @property
    def accounted(self) -> Tally:
        """The sum over all results: what ``read`` has to be."""
        total = Tally()
        for name in RESULTS:
            total = total + getattr(self, name)
        return total

    @property
    def balanced(self) -> bool:
        """Say whether every row read has exactly one result, in rows and in cents."""
        return self.read == self.accounted

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return plain values for a JSON document."""
        return {
            item.name: {"rows": getattr(self, item.name).rows, "cents": getattr(self, item.name).cents}
            for item in fields(self)
        }
