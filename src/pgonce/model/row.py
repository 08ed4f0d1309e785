"""A record read by a job's definition: its identity, its amount, and its payload; or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgonce.errors import RowRefused
from pgonce.model.canonical import declared
from pgonce.model.definition import Definition
from pgonce.model.identity import (
    MAX_ID_BYTES,
    MAX_PAYLOAD_BYTES,
    event_id,
    payload_text,
    plain_array,
    source_text,
)
from pgonce.model.money import parse_cents
from pgonce.model.record import Malformed, Record

# A rejected row is kept so that it can be corrected and handed in again; what is longer is not a row any more.
KEPT_RAW_BYTES_MAX = 64 * 1024

# Up to here nothing has to be measured in bytes, and no sum of digits is more than 64 bits hold.
PLAIN_ID_MAX = MAX_ID_BYTES // 4
PLAIN_PAYLOAD_MAX = MAX_PAYLOAD_BYTES // 4
PLAIN_DIGITS_MAX = 18

Key = tuple[str, str]
"""The identity of an event inside its job: (source, event_id)."""


@dataclass(slots=True)  # one is made for each row: frozen, that takes twice as long
class Row:
    """A usable row of the input. ``amount_cents`` is whole minor units, ``payload`` canonical text."""

    line: int
    source: str
    event_id: str
    amount_cents: int
    payload: str
    fields: Mapping[str, object]
    raw: bytes

    @property
    def key(self) -> Key:
        """The identity inside the job."""
        return (self.source, self.event_id)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is kept of a row that was rejected, or that conflicts with the stored event."""

    line: int
    kind: str
    reason: str
    raw: bytes
    source: str | None = None
    event_id: str | None = None
    amount_cents: int | None = None


def conflict(row: Row, reason: str) -> Finding:
    """Make the finding of a row that came with another payload than the stored event."""
    return Finding(
        line=row.line,
        kind="conflict",
        reason=reason,
        raw=row.raw[:KEPT_RAW_BYTES_MAX],
        source=row.source,
        event_id=row.event_id,
        amount_cents=row.amount_cents,
    )


class RowReader:
    """Reads records by a definition whose payload columns are fixed, for one input and its source."""

    def __init__(self, definition: Definition, source: str) -> None:
        self.definition = definition
        self.source = source_text(source) if source else ""
        self._types = dict(definition.types)
        self._omit = definition.outside_payload
        inside = definition.columns if definition.columns is not None else ()
        self._typed_outside = [(name, kind) for name, kind in self._types.items() if name not in inside]
        # What a plain row is read by; its shape is that of most jobs.
        is_plain = len(definition.key) == 1 and len(inside) > 1 and not (self._types or definition.amount_scale)
        self._plain_columns = inside if is_plain and definition.source_column is None else ()

    def read(self, piece: Record | Malformed) -> Row | Finding:
        """Return the row, or the finding that says why there is none."""
        if isinstance(piece, Malformed):
            return _rejected(piece, piece.reason)
        try:
            return self._row(piece)
        except RowRefused as refusal:
            return _rejected(piece, str(refusal))

    def _plain_row(self, record: Record) -> Row | None:
        """Read a row of plain ASCII in one go, to the same end as ``_row``; None where any of it is not plain."""
        fields, definition = record.fields, self.definition
        identity = fields.get(definition.key[0])
        cents = fields.get(definition.amount) if definition.amount else "0"
        if (
            type(identity) is str
            and type(cents) is str
            and identity.isascii()
            and identity.isprintable()
            and 0 < len(identity) <= PLAIN_ID_MAX
            and identity[0] != " " != identity[-1]
            and cents.isdecimal()
            and cents.isascii()
            and len(cents) <= PLAIN_DIGITS_MAX
            and (payload := plain_array([fields.get(name) for name in self._plain_columns])) is not None
            and len(payload) <= PLAIN_PAYLOAD_MAX
        ):
            return Row(record.line, self.source, identity, int(cents), payload, fields, record.raw)
        return None

    def _row(self, record: Record) -> Row:
        if self._plain_columns and (plain := self._plain_row(record)) is not None:
            return plain
        fields, definition = record.fields, self.definition
        identity = event_id([fields.get(name) for name in definition.key], definition.key)
        column = definition.source_column
        source = source_text(fields.get(column), column) if column else self.source
        amount = definition.amount
        cents = parse_cents(fields.get(amount), scale=definition.amount_scale, column=amount) if amount else 0
        payload = payload_text(fields, columns=definition.columns, omit=self._omit, types=self._types)
        for name, kind in self._typed_outside:
            declared(fields.get(name), kind, name)
        return Row(record.line, source, identity, cents, payload, fields, record.raw)


def _rejected(piece: Record | Malformed, reason: str) -> Finding:
    return Finding(line=piece.line, kind="rejected", reason=reason, raw=piece.raw[:KEPT_RAW_BYTES_MAX])
