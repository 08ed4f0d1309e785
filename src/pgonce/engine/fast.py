"""The fast path: a chunk whose events are taken to be new is written by COPY, without asking first.

It stands in the place of one step of ``apply``, the settling of the rows that name an event for the first time; all
else is the exact path's. It can be wrong without harm. A stored id violates the key, whatever amount and payload it
came with, and ids that another session has inserted are waited for; then the transaction is rolled back and the exact
path, which asks, settles the chunk. Having asked, one knows whether the next chunk is worth another try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from pgonce.db.copying import KeyTaken, copy_rows
from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Redo, Settled, Work, apply_chunk, claim, require_all, settle_rows, write_findings
from pgonce.engine.batch import Batch, ColumnBatch, Columns, RowBatch, Stamp
from pgonce.engine.replay import is_replay
from pgonce.model.chunk import Chunk
from pgonce.model.outcome import Tally
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
    """Settles rows in the way that what came before makes seem the best. A wrong guess costs time and nothing else.

    ``may_copy`` says whether COPY may be used, ``misses`` how many batches in turn were replayed and had
    another hash all the same.
    """

    expected: Expected = Expected.NEW
    may_copy: bool = True
    misses: int = 0

    def settle(self, transaction: Transaction, work: Work, settled: Settled, rows: Sequence[Row]) -> None:
        """Settle rows in key order, each of another event, in the open transaction.

        Raises Redo when the guess was wrong: roll back and call it again, it asks then.
        Safe to re-run: yes.
        """
        if self.expected is not Expected.NEW or not rows:
            self.ask(transaction, work, settled, rows)
            return
        try:
            self._claim(transaction, work, settled, rows)
        except Redo:
            self.expected = Expected.REPLAYED
            raise

    def ask(self, transaction: Transaction, work: Work, settled: Settled, rows: Sequence[Row]) -> None:
        """Settle rows as ``settle`` does, always asking first.

        Safe to re-run: yes.
        """
        if not rows or self._is_replay(transaction, work, settled, RowBatch(rows)):
            return
        known = settle_rows(transaction, work, settled, rows, self._claim)
        self._learn(known, len(rows), settled.already.rows)

    def settle_columns(
        self, transaction: Transaction, work: Work, settled: Settled, columns: Columns, *, asking: bool
    ) -> ColumnBatch | None:
        """Settle a chunk of columns in the open transaction, and return what was applied of it.

        None, with nothing done, where its rows have to be looked at one by one.

        Raises Redo as ``settle`` does. Safe to re-run: yes.
        """
        batch = columns.batch(adopt=work.adopt) if self.may_copy else None
        if batch is None or batch.rows < COPY_ROWS_MIN:
            return None
        applied = self._columns(transaction, work, settled, batch, asking)
        if applied is None:
            return None
        settled.rows += columns.size
        settled.cents += batch.cents
        settled.findings.extend(columns.findings)
        settled.copied += applied.rows
        return applied

    def _columns(
        self, transaction: Transaction, work: Work, settled: Settled, batch: ColumnBatch, asking: bool
    ) -> ColumnBatch | None:
        if self.expected is Expected.NEW and not asking:
            try:
                self._copy(transaction, work, batch)
            except Redo:
                self.expected = Expected.REPLAYED
                raise
            return batch
        if self._is_replay(transaction, work, settled, batch):
            return batch.taking(())
        sifted = sift(transaction, work, batch)
        if sifted is None:
            self.expected = Expected.MIXED
            return None
        absent, same = sifted
        self._learn(same.rows, batch.rows, same.rows)
        new = batch.taking(absent)
        if new.rows:
            self._copy(transaction, work, new)
        settled.already += same
        return new

    def prepare(self, work: Work, columns: Columns, staged: Sequence[str] | None) -> None:
        """Do ahead what a chunk of columns will probably need: encode it to be written whole, or hash it."""
        if not self.may_copy:
            return
        if self.expected is Expected.NEW:
            columns.encode_ahead(stamp_of(work), staged)
        elif self.expected is Expected.REPLAYED and self.misses < MISSES_MAX:
            columns.hash_ahead(adopt=work.adopt)

    def _is_replay(self, transaction: Transaction, work: Work, settled: Settled, batch: Batch) -> bool:
        """Count a batch as ``already`` if its hash says so; it is not asked where that has been in vain."""
        if self.expected is not Expected.REPLAYED or self.misses >= MISSES_MAX:
            return False
        if not is_replay(transaction, work, batch):
            self.misses += 1
            return False
        self.misses = 0
        settled.already += Tally(batch.rows, batch.cents)
        return True

    def _learn(self, known: int, rows: int, already: int) -> None:
        """Take the next events to be what these were."""
        if known == rows == already:
            self.expected = Expected.REPLAYED
        else:
            self.expected = Expected.MIXED if known else Expected.NEW

    def _claim(self, transaction: Transaction, work: Work, settled: Settled, new: Sequence[Row]) -> None:
        """Claim new events by COPY; by an insert where they are few or one is refused. Raises Redo for a stored one."""
        plain = work.adopt or not any(row.amount_cents < 0 for row in new)
        if not (plain and self.may_copy and len(new) >= COPY_ROWS_MIN):
            claim(transaction, work, settled, new)
            return
        settled.tries(work.attempt_budget)
        self._copy(transaction, work, RowBatch(new))
        settled.applied.extend(new)

    def _copy(self, transaction: Transaction, work: Work, batch: Batch) -> None:
        """Write events and effects: the very rows that ``claim`` would insert. Raises Redo if one is stored."""
        stamp = stamp_of(work)
        try:
            require_all("event", missing=batch.rows - copy_rows(transaction, "copy_events", batch.events(stamp)))
            if not work.adopt:
                stored = copy_rows(transaction, "copy_effects", batch.effects(stamp))
                require_all("effect", missing=batch.rows - stored)
        except KeyTaken as taken:
            raise Redo from taken


def stamp_of(work: Work) -> Stamp:
    """Say what the events that are stored by this work have in common."""
    return Stamp(job=work.job, run_id=work.run_id, epoch=work.epoch, adopted=work.adopt)


def apply_part(
    transaction: Transaction,
    work: Work,
    part: Chunk | Columns,
    effect: Callable[[Sequence[Row] | ColumnBatch], None],
    settled: Settled,
    guess: Guess,
    *,
    asking: bool = False,
) -> None:
    """Settle every row of a chunk in the open transaction: as columns if it has them and may be, else row by row.

    ``effect`` and ``settled`` are those of ``apply_chunk``. ``asking`` has nothing written without asking first: for a
    transaction too long to be done again lightly. Raises Redo as ``Guess.settle`` does.
    Safe to re-run: yes; what was settled before is a replay.
    """
    if not isinstance(part, Chunk):
        applied = guess.settle_columns(transaction, work, settled, part, asking=asking)
        if applied is not None:
            if applied.rows:
                effect(applied)
            write_findings(transaction, work, settled.findings)
            return
    apply_chunk(transaction, work, part.by_row(), effect, settled, guess.ask if asking else guess.settle)


def sift(transaction: Transaction, work: Work, batch: ColumnBatch) -> tuple[Sequence[int], Tally] | None:
    """Part a batch into the numbers of what is not stored, and a tally of what is stored and completed just so.

    None where there is anything else, which has to be looked at one by one. Safe to re-run: it only reads.
    """
    keys = batch.keys()
    found = transaction.row(
        "sift_events",
        job=work.job,
        sources=keys.sources,
        event_ids=keys.event_ids,
        amounts=keys.amounts,
        payloads=keys.payloads,
    )
    assert found is not None
    absent, same, same_cents, runs = found[0] or [], found[1], int(found[2]), found[3] or []
    if len(absent) + same != batch.rows:
        return None
    if not all(work.comparison.read_alike(transaction, run_id) for run_id in runs):
        return None
    return [number - 1 for number in absent], Tally(same, same_cents)
