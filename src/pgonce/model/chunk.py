"""The rows of one transaction, and the stretch of the input they were read from."""

from __future__ import annotations

from dataclasses import dataclass

from pgonce.model.cursor import Cursor
from pgonce.model.row import Finding, Row


@dataclass(slots=True)  # one is made for each row: frozen, that takes twice as long
class Entry:
    """One row of the input, usable or not, with every byte since the row before it."""

    raw: bytes
    row: Row | Finding


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows between two places of the input."""

    begin: Cursor
    entries: tuple[Entry, ...]
    end: Cursor

    @property
    def first_line(self) -> int:
        """The line of the first row; 0 if there is none."""
        return self.entries[0].row.line if self.entries else 0

    @property
    def size(self) -> int:
        """The number of rows, usable or not."""
        return len(self.entries)

    def by_row(self) -> Chunk:
        """Return the same rows one by one, which they are."""
        return self

    def halves(self) -> tuple[Chunk, Chunk]:
        """Split into an earlier and a later half, each with its own end; for finding a bad row."""
        middle = len(self.entries) // 2
        earlier, later = self.entries[:middle], self.entries[middle:]
        between = self.begin.advance(entry.raw for entry in earlier)
        return Chunk(self.begin, earlier, between), Chunk(between, later, self.end)

    def until(self, count: int) -> Chunk:
        """Return the chunk of the first ``count`` rows."""
        kept = self.entries[:count]
        return Chunk(self.begin, kept, self.begin.advance(entry.raw for entry in kept))
