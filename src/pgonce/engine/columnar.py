"""A block of columns as the fast path takes it. Needs pyarrow; where it is missing, inputs are read row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgonce.db.arrays import BIGINT_OID, TEXT_OID, BigintArray, TextArray, head
from pgonce.db.binarycopy import NULL, bigint, boolean, elements, integer, key_order, rows, text
from pgonce.engine.batch import Keys, Span, Stamp
from pgonce.model.chunk import Chunk
from pgonce.model.cursor import Cursor
from pgonce.model.row import Finding
from pgonce.sources.columns import Block


@dataclass(slots=True, eq=False)
class BlockColumns:
    """A block of an input as the rows of one transaction."""

    block: Block
    _ready: ArrowBatch | None = None

    @property
    def begin(self) -> Cursor:
        """The place before its rows."""
        return self.block.begin

    @property
    def end(self) -> Cursor:
        """The place behind its rows."""
        return self.block.end

    @property
    def first_line(self) -> int:
        """The line of the first row; 0 if there is none."""
        firsts = [finding.line for finding in self.block.findings[:1]]
        if self.block.rows:
            firsts.append(int(self.block.line[0].as_py()))
        return min(firsts, default=0)

    @property
    def size(self) -> int:
        """The number of rows, usable or not."""
        return self.block.rows + len(self.block.findings)

    @property
    def findings(self) -> Sequence[Finding]:
        """The rows that could not be used."""
        return self.block.findings

    def by_row(self) -> Chunk:
        """Read the rows again, one by one."""
        return self.block.chunk()

    def encode_ahead(self, stamp: Stamp, staged: Sequence[str] | None) -> None:
        """Encode the rows for COPY now: later they may be wanted by a thread that has more to do than this one."""
        batch = self.batch(adopt=stamp.adopted)
        if batch is not None:
            self._ready = batch.encoded(stamp, staged)

    def hash_ahead(self, *, adopt: bool) -> None:
        """Hash the rows now, for the same reason."""
        batch = self.batch(adopt=adopt)
        if batch is not None:
            self._ready = replace(batch, hashed=batch.digest())

    def batch(self, *, adopt: bool) -> ArrowBatch | None:
        """Return the usable rows as a batch; None where an event comes twice or a row is to be refused."""
        if self._ready is not None:
            return self._ready
        block = self.block
        if not block.rows or (not adopt and pc.min(block.amount_cents).as_py() < 0):
            return None
        order = key_order(block.source, block.event_id)
        of_rows: tuple[Any, ...] = (block.source, block.event_id, block.amount_cents, block.payload, block.line)
        if order is not None:
            of_rows = tuple(column.take(order) for column in of_rows)
        source, event_id, amount_cents, payload, line = of_rows
        fields = block.fields if order is None or block.fields is None else block.fields.take(order)
        twice = pc.and_(pc.equal(source[1:], source[:-1]), pc.equal(event_id[1:], event_id[:-1]))
        if pc.any(twice).as_py():
            return None
        return ArrowBatch(source, event_id, amount_cents, payload, line, fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """What COPY takes of a batch, encoded before it was asked for."""

    stamp: Stamp
    events: bytes
    effects: bytes
    staged: bytes | None


@dataclass(frozen=True, slots=True, eq=False)
class ArrowBatch:
    """A batch of columns: arrays of text, and of 64-bit integers for amounts and lines."""

    source: pa.Array
    event_id: pa.Array
    amount_cents: pa.Array
    payload: pa.Array
    line: pa.Array
    fields: pa.Table | None
    ahead: Encoded | None = None
    hashed: bytes | None = None

    @property
    def rows(self) -> int:
        """Their number."""
        return len(self.line)

    @property
    def cents(self) -> int:
        """The sum of their amounts, which may be more than 64 bits hold."""
        amounts = self.amount_cents.to_numpy()
        return (int((amounts >> 32).sum()) << 32) + int((amounts & 0xFFFFFFFF).sum())

    def encoded(self, stamp: Stamp, staged: Sequence[str] | None) -> ArrowBatch:
        """Return the same batch, with what COPY will take of it; ``staged`` are the columns for the relation."""
        rows_staged = None if staged is None else b"".join(self.staged(staged))
        events, effects = (b"".join(pieces) for pieces in (self.events(stamp), self.effects(stamp)))
        return replace(self, ahead=Encoded(stamp=stamp, events=events, effects=effects, staged=rows_staged))

    def events(self, stamp: Stamp) -> Iterable[bytes]:
        """Encode the rows as ``copy_events`` takes them."""
        if self.ahead is not None and self.ahead.stamp == stamp:
            yield self.ahead.events
            return
        of_all = (bigint(stamp.run_id), integer(stamp.epoch), integer(1), boolean(stamp.adopted), text(stamp.job))
        of_each = (self.source, self.event_id, text("completed"), self.amount_cents, self.line, self.payload)
        yield rows((*of_all, *of_each, NULL), self.rows)

    def effects(self, stamp: Stamp) -> Iterable[bytes]:
        """Encode the rows as ``copy_effects`` takes them."""
        if self.ahead is not None and self.ahead.stamp == stamp:
            yield self.ahead.effects
            return
        yield rows((text(stamp.job), self.source, self.event_id, self.amount_cents), self.rows)

    def span(self) -> Span | None:
        """Say between which keys the rows lie, None if they are of several sources."""
        if self.source[0] != self.source[-1]:
            return None
        longest = int(pc.max(pc.binary_length(self.payload)).as_py())
        low, high = self.event_id[0].as_py(), self.event_id[-1].as_py()
        return Span(source=self.source[0].as_py(), low=low, high=high, payload_bytes=longest)

    def digest(self) -> bytes:
        """Hash the rows as ``digest_events`` hashes events."""
        return self.hashed or hashlib.sha256(rows((self.amount_cents, self.event_id, self.payload), self.rows)).digest()

    def keys(self) -> Keys:
        """Give the rows as arrays for a statement."""
        return Keys(
            sources=_texts(self.source),
            event_ids=_texts(self.event_id),
            amounts=BigintArray(head(self.rows, BIGINT_OID) + elements(self.amount_cents)),
            payloads=_texts(self.payload),
        )

    def taking(self, numbers: Sequence[int]) -> ArrowBatch:
        """Return the batch of the rows with these numbers."""
        chosen: Any = pa.array(np.asarray(numbers, dtype=np.int64))
        return replace(
            self,
            source=self.source.take(chosen),
            event_id=self.event_id.take(chosen),
            amount_cents=self.amount_cents.take(chosen),
            payload=self.payload.take(chosen),
            line=self.line.take(chosen),
            ahead=None,
            hashed=None,
            fields=None if self.fields is None else self.fields.take(chosen),
        )

    def staged(self, columns: Sequence[str]) -> Iterable[bytes]:
        """Encode the rows as the relation ``chunk`` takes them in binary."""
        if self.ahead is not None and self.ahead.staged is not None:
            yield self.ahead.staged
            return
        fields = self.fields
        of_file = [] if fields is None else [fields.column(name).combine_chunks() for name in columns]
        yield rows((self.event_id, self.source, self.line, self.amount_cents, *of_file), self.rows)


def _texts(array: pa.Array) -> TextArray:
    return TextArray(head(len(array), TEXT_OID) + elements(array))
