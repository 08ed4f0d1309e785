"""A chunk whose events are all stored, completed and the same is recognised by one hash, made here and by the server.

Comparing them one by one sends every payload and looks every key up; the hash reads the key's index once along the
chunk. If the hashes differ, nothing is known, and the rows are compared one by one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Settled, Work
from pgonce.model.outcome import Tally
from pgonce.model.row import Row

# The server puts what it hashes together in memory, and at most this much: it refuses a text of more than 1 GB.
DIGEST_BYTES_MAX = 64 << 20

_SIZES = struct.Struct(">qii")


def settle_replay(transaction: Transaction, work: Work, settled: Settled, rows: Sequence[Row]) -> bool:
    """Count rows, in key order and each of another event, as ``already`` if they are stored just so; say whether.

    False says nothing: ask for each of them. Safe to re-run: it only reads.
    """
    if rows[0].source != rows[-1].source:
        return False
    longest = max(len(row.payload) for row in rows) * 4
    if longest * len(rows) > DIGEST_BYTES_MAX:
        return False
    found = transaction.row(
        "digest_events",
        job=work.job,
        source=rows[0].source,
        low=rows[0].event_id,
        high=rows[-1].event_id,
        rows=len(rows),
        payload_bytes=longest,
    )
    assert found is not None
    stored, events, first_run, last_run, all_completed = found
    if events != len(rows) or first_run != last_run or not all_completed or stored != digest_of(rows):
        return False
    if not work.comparison.read_alike(transaction, first_run):
        return False
    settled.already += Tally(len(rows), sum(row.amount_cents for row in rows))
    return True


def digest_of(rows: Sequence[Row]) -> bytes:
    """Hash rows in key order as ``digest_events`` hashes events: no two lists of rows give the same bytes to hash."""
    parts: list[bytes] = []
    for row in rows:
        event_id, payload = row.event_id.encode(), row.payload.encode()
        parts += (_SIZES.pack(row.amount_cents, len(event_id), len(payload)), event_id, payload)
    return hashlib.sha256(b"".join(parts)).digest()
