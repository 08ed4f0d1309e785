"""Rows that can be written without looking at each of them: in key order, each of another event, none to be refused.

This is all that the fast path knows of rows. ``RowBatch`` makes its bytes of rows, ``columnar`` of columns.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from pgonce.db.arrays import BigintArray, TextArray
from pgonce.db.copying import NULL, field
from pgonce.model.chunk import Chunk
from pgonce.model.cursor import Cursor
from pgonce.model.row import Finding, Row

# Rows of a piece that is handed to the driver: small beside a chunk, large beside a system call.
PIECE_ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What all new events of a chunk have in common: who stored them, and whether as history."""

    job: str
    run_id: int
    epoch: int
    adopted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The keys between which rows of one source lie, and an upper bound in bytes of each of their payloads."""

    source: str
    low: str
    high: str
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows as arrays for a statement that looks each of them up."""

    sources: TextArray
    event_ids: TextArray
    amounts: BigintArray
    payloads: TextArray


class Batch(Protocol):
    """Rows in key order, each of another event, none of which is to be refused."""

    @property
    def rows(self) -> int:
        """Their number."""

    @property
    def cents(self) -> int:
        """The sum of their amounts."""

    def events(self, stamp: Stamp) -> Iterable[bytes]:
        """Encode the rows as ``copy_events`` takes them, in pieces of any size."""

    def effects(self, stamp: Stamp) -> Iterable[bytes]:
        """Encode the rows as ``copy_effects`` takes them, in pieces of any size."""

    def span(self) -> Span | None:
        """Say between which keys the rows lie, None if they are of several sources."""

    def digest(self) -> bytes:
        """Hash the rows as ``digest_events`` hashes events."""


class Columns(Protocol):
    """The rows of one transaction as columns, and the stretch of the input they were read from, as a Chunk has them."""

    @property
    def begin(self) -> Cursor: ...
    @property
    def end(self) -> Cursor: ...
    @property
    def first_line(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def findings(self) -> Sequence[Finding]: ...
    def by_row(self) -> Chunk:
        """Return the same rows one by one, for the exact path."""

    def encode_ahead(self, stamp: Stamp, staged: Sequence[str] | None) -> None:
        """Encode the rows for COPY now, and for the relation ``chunk`` with these columns of the file."""

    def hash_ahead(self, *, adopt: bool) -> None:
        """Hash the rows now."""

    def batch(self, *, adopt: bool) -> ColumnBatch | None:
        """Return the usable rows as a batch; None where an event comes twice or a row is to be refused."""


class ColumnBatch(Batch, Protocol):
    """A batch that also sends its keys, gives a part of itself, and fills the relation ``chunk``."""

    def keys(self) -> Keys:
        """Give the rows as arrays."""

    def taking(self, numbers: Sequence[int]) -> Self:
        """Return the batch of the rows with these numbers, which ascend from 0."""

    def staged(self, columns: Sequence[str]) -> Iterable[bytes]:
        """Encode the rows as the relation ``chunk`` takes them in binary: pgonce's columns, then these of the file."""


_SIZE = struct.Struct(">i")
_BIGINT = struct.Struct(">iq")
_BIGINTS = struct.Struct(">iqiq")
_HASHED = struct.Struct(">hiqi")
_EVENT_FIELDS, _EFFECT_FIELDS = struct.pack(">h", 12), struct.pack(">h", 4)
_COMPLETED, _ONE_ATTEMPT = field(b"completed"), field(_SIZE.pack(1))


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A batch of rows that were read one by one."""

    of: Sequence[Row]

    @property
    def rows(self) -> int:
        """Their number."""
        return len(self.of)

    @property
    def cents(self) -> int:
        """The sum of their amounts."""
        return sum(row.amount_cents for row in self.of)

    def events(self, stamp: Stamp) -> Iterable[bytes]:
        """Encode the rows as ``copy_events`` takes them."""
        size, bigints = _SIZE.pack, _BIGINTS.pack
        start = b"".join(
            (
                _EVENT_FIELDS,
                field(struct.pack(">q", stamp.run_id)),
                field(_SIZE.pack(stamp.epoch)),
                _ONE_ATTEMPT,
                field(bytes([stamp.adopted])),
                field(stamp.job.encode()),
            )
        )
        for number in range(0, len(self.of), PIECE_ROWS):
            piece: list[bytes] = []
            for row in self.of[number : number + PIECE_ROWS]:
                source, event_id, payload = row.source.encode(), row.event_id.encode(), row.payload.encode()
                piece += (
                    start,
                    size(len(source)),
                    source,
                    size(len(event_id)),
                    event_id,
                    _COMPLETED,
                    bigints(8, row.amount_cents, 8, row.line),
                    size(len(payload)),
                    payload,
                    NULL,
                )
            yield b"".join(piece)

    def effects(self, stamp: Stamp) -> Iterable[bytes]:
        """Encode the rows as ``copy_effects`` takes them."""
        size, bigint, start = _SIZE.pack, _BIGINT.pack, _EFFECT_FIELDS + field(stamp.job.encode())
        for number in range(0, len(self.of), PIECE_ROWS):
            piece: list[bytes] = []
            for row in self.of[number : number + PIECE_ROWS]:
                source, event_id = row.source.encode(), row.event_id.encode()
                piece += (start, size(len(source)), source, size(len(event_id)), event_id, bigint(8, row.amount_cents))
            yield b"".join(piece)

    def span(self) -> Span | None:
        """Say between which keys the rows lie, None if they are of several sources."""
        first, last = self.of[0], self.of[-1]
        if first.source != last.source:
            return None
        longest = max(len(row.payload) for row in self.of)
        return Span(source=first.source, low=first.event_id, high=last.event_id, payload_bytes=longest * 4)

    def digest(self) -> bytes:
        """Hash the rows as ``digest_events`` hashes events: no two batches give the same bytes to hash."""
        parts: list[bytes] = []
        for row in self.of:
            event_id, payload = row.event_id.encode(), row.payload.encode()
            parts += (_HASHED.pack(3, 8, row.amount_cents, len(event_id)), event_id, _SIZE.pack(len(payload)), payload)
        return hashlib.sha256(b"".join(parts)).digest()
