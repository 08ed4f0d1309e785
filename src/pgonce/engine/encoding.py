"""The rows of ``event`` and ``effect`` as the bytes that COPY takes.

``Encoded`` is all that the fast path knows of it: whoever makes these bytes from columns instead of rows hands in one
of those.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgonce.db.copying import NULL, field
from pgonce.model.row import Key, Row

# Rows of a piece that is handed to the driver: small beside a chunk, large beside a system call.
PIECE_ROWS = 1_000

_SIZE = struct.Struct(">i")
_BIGINT = struct.Struct(">iq")
_BIGINTS = struct.Struct(">iqiq")
_EVENT_FIELDS, _EFFECT_FIELDS = struct.pack(">h", 12), struct.pack(">h", 4)
_COMPLETED, _FAILED = field(b"completed"), field(b"failed")
_ONE_ATTEMPT = field(_SIZE.pack(1))


@dataclass(frozen=True, slots=True)
class Encoded:
    """New events in key order as the bytes of COPY's rows, in pieces of any size, and their effects, None if none."""

    events: Iterable[bytes]
    effects: Iterable[bytes] | None


def encode(
    rows: Sequence[Row], refused: Mapping[Key, str], *, job: str, run_id: int, epoch: int, adopted: bool
) -> Encoded:
    """Encode the events of rows in key order, tried once, and the effects of those that are not refused nor adopted.

    ``refused`` are the reasons of those that fail for good. Safe to re-run: a pure function.
    """
    applied = [row for row in rows if row.key not in refused] if refused else rows
    effects = _effects(applied, job) if applied and not adopted else None
    return Encoded(_events(rows, refused, job, run_id, epoch, adopted), effects)


def _events(
    rows: Sequence[Row], refused: Mapping[Key, str], job: str, run_id: int, epoch: int, adopted: bool
) -> Iterable[bytes]:
    size, bigints = _SIZE.pack, _BIGINTS.pack
    start = _EVENT_FIELDS + field(struct.pack(">q", run_id)) + field(_SIZE.pack(epoch)) + _ONE_ATTEMPT
    of_completed = start + field(bytes([adopted])) + field(job.encode())
    of_failed = start + field(bytes([False])) + field(job.encode())
    for number in range(0, len(rows), PIECE_ROWS):
        piece: list[bytes] = []
        for row in rows[number : number + PIECE_ROWS]:
            source, event_id, payload = row.source.encode(), row.event_id.encode(), row.payload.encode()
            error = refused.get(row.key) if refused else None
            piece += (
                of_completed if error is None else of_failed,
                size(len(source)),
                source,
                size(len(event_id)),
                event_id,
                _COMPLETED if error is None else _FAILED,
                bigints(8, row.amount_cents, 8, row.line),
                size(len(payload)),
                payload,
                NULL if error is None else field(error.encode()),
            )
        yield b"".join(piece)


def _effects(rows: Sequence[Row], job: str) -> Iterable[bytes]:
    size, bigint, start = _SIZE.pack, _BIGINT.pack, _EFFECT_FIELDS + field(job.encode())
    for number in range(0, len(rows), PIECE_ROWS):
        piece: list[bytes] = []
        for row in rows[number : number + PIECE_ROWS]:
            source, event_id = row.source.encode(), row.event_id.encode()
            piece += (start, size(len(source)), source, size(len(event_id)), event_id, bigint(8, row.amount_cents))
        yield b"".join(piece)
