"""A batch whose events are all stored, completed and the same is recognised by one hash, made here and by the server.

Comparing them one by one sends every payload and looks every key up; the hash reads the key's index once along the
batch. If the hashes differ, nothing is known, and the rows are compared one by one.
"""

from __future__ import annotations

from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Work
from pgonce.engine.batch import Batch

# The server puts what it hashes together in memory, and at most this much: it refuses a text of more than 1 GB.
DIGEST_BYTES_MAX = 256 << 20


def is_replay(transaction: Transaction, work: Work, batch: Batch) -> bool:
    """Say whether all events of a batch are stored and completed just so. False says nothing: ask for each of them.

    Safe to re-run: it only reads.
    """
    span = batch.span()
    if span is None or span.payload_bytes * batch.rows > DIGEST_BYTES_MAX:
        return False
    found = transaction.row(
        "digest_events",
        job=work.job,
        source=span.source,
        low=span.low,
        high=span.high,
        rows=batch.rows,
        payload_bytes=span.payload_bytes,
    )
    assert found is not None
    stored, events, first_run, last_run, all_completed = found
    if events != batch.rows or first_run != last_run or not all_completed or stored != batch.digest():
        return False
    return work.comparison.read_alike(transaction, first_run)
