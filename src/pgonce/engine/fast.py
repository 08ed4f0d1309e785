"""The fast path: a chunk whose events are taken to be new is written by COPY, without asking first.

It stands in the place of one step of ``apply``, the settling of the rows that name an event for the first time; all
else is the exact path's. It can be wrong without harm. A stored id violates the key, whatever amount and payload it
came with, and ids that another session has inserted are waited for; then the transaction is rolled back and the exact
path, which asks, settles the chunk. Having asked, one knows whether the next chunk is worth another try.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pgonce.db.copying import CopyRefused, KeyTaken, copy_rows
from pgonce.db.failure import EFFECT_KEY
from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Redo, Settled, Work, claim, judge, settle_rows
from pgonce.engine.encoding import encode
from pgonce.engine.replay import settle_replay
from pgonce.model.row import Row

# Fewer rows go into one insert: two COPYs cost two statements, and this many rows win about one back.
COPY_ROWS_MIN = 50

# Chunks whose ids lie far apart, or came by several runs, have no hash that could be the same: after so many of them in
# turn none is made any more.
MISSES_MAX = 3


class Expected(Enum):
    """What the next chunk's events are taken to be."""

    NEW = "new"
    """None is stored: they are written without asking."""
    MIXED = "mixed"
    """Some are stored: they are asked for one by one."""
    REPLAYED = "replayed"
    """All are stored just so: they are asked for all at once, then one by one."""


@dataclass(slots=True)
class Guess:
    """Settles the rows that name an event for the first time, in the way that what came before makes seem the best.

    A wrong guess costs time and nothing else. ``may_copy`` says whether COPY has not been refused yet, ``misses`` how
    many chunks in turn were replayed and had another hash all the same.
    """

    expected: Expected = Expected.NEW
    may_copy: bool = True
    misses: int = 0

    def settle(self, transaction: Transaction, work: Work, settled: Settled, rows: Sequence[Row]) -> None:
        """Settle rows in key order, each of another event, in the open transaction.

        Raises Redo when the guess was wrong: roll back and call it again, it asks then.
        Safe to re-run: yes.
        """
        if not rows:
            return
        if self.expected is not Expected.NEW:
            self.ask(transaction, work, settled, rows)
            return
        try:
            self._claim(transaction, work, settled, rows)
        except Redo:
            self.expected = Expected.REPLAYED
            raise

    def ask(self, transaction: Transaction, work: Work, settled: Settled, rows: Sequence[Row]) -> None:
        """Settle rows as ``settle`` does, always asking first: for a transaction too long to be done again lightly.

        Safe to re-run: yes.
        """
        if not rows:
            return
        hashed = self.expected is Expected.REPLAYED and self.misses < MISSES_MAX
        if hashed and settle_replay(transaction, work, settled, rows):
            self.misses = 0
            return
        known = settle_rows(transaction, work, settled, rows, self._claim)
        replayed = known == len(rows) == settled.already.rows
        self.misses += hashed and replayed
        self.expected = Expected.REPLAYED if replayed else Expected.MIXED if known else Expected.NEW

    def _claim(self, transaction: Transaction, work: Work, settled: Settled, new: Sequence[Row]) -> None:
        """Claim new events by COPY, few of them by an insert. Raises Redo when one is stored."""
        try:
            if self.may_copy and len(new) >= COPY_ROWS_MIN:
                copy_new(transaction, work, settled, new)
            else:
                claim(transaction, work, settled, new)
        except KeyTaken as taken:
            # An effect where no event was found is a broken promise: the exact path's insert says so.
            self.may_copy = self.may_copy and taken.constraint != EFFECT_KEY
            raise Redo from taken
        except CopyRefused as refused:
            self.may_copy = False
            raise Redo from refused


def copy_new(transaction: Transaction, work: Work, settled: Settled, rows: Sequence[Row]) -> None:
    """Claim new events by COPY, with their effects; the rows that are written are those that ``claim`` would insert.

    Raises KeyTaken when one of them is stored. Safe to re-run: in another transaction.
    """
    settled.tries(work.attempt_budget)
    refused = {row.key: error for row in rows if row.amount_cents < 0 and (error := judge(row, work.adopt)[1])}
    encoded = encode(rows, refused, job=work.job, run_id=work.run_id, epoch=work.epoch, adopted=work.adopt)
    copy_rows(transaction, "copy_events", encoded.events)
    if encoded.effects is not None:
        copy_rows(transaction, "copy_effects", encoded.effects)
    if not refused:
        settled.applied.extend(rows)
        return
    settled.applied.extend(row for row in rows if row.key not in refused)
    settled.refused.extend((row, refused[row.key]) for row in rows if row.key in refused)
