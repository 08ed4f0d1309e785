"""One part of the input in its transaction, in two steps: what pgonce keeps of it, then what the user's SQL does.

The first step may run before its turn, while the chunks before it are not committed: whatever it finds is final,
locked, or claimed by itself, so that it comes to the same whenever it runs. SQL of the user may look at anything; it
waits for its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Settled, Work
from pgonce.engine.batch import ColumnBatch, Columns
from pgonce.engine.effect import Effect
from pgonce.engine.fast import Guess, apply_part
from pgonce.model.chunk import Chunk
from pgonce.model.row import Row


@dataclass(slots=True, kw_only=True)
class Applying:
    """Applies a part in one transaction, or again in another one when the first was rolled back.

    ``settled`` is what became of the rows in the last of them, also if it failed on the way.
    """

    work: Work
    part: Chunk | Columns
    effect: Effect | None
    guess: Guess
    settled: Settled = field(default_factory=Settled)
    _due: list[Sequence[Row] | ColumnBatch] = field(default_factory=list)
    _stored_in: Transaction | None = None
    _is_staged: bool = False

    def apply(self, transaction: Transaction) -> None:
        """Take both steps, or the second one if this transaction has taken the first.

        Raises Redo when another transaction was faster; whatever the statements raise.
        Safe to re-run: in a new transaction.
        """
        if self._stored_in is not transaction:
            self.store(transaction)
        if self.effect is not None and self._due:
            if not self._is_staged:
                self._stage(transaction, self.effect)
            self.effect.finish(transaction)

    def store(self, transaction: Transaction) -> None:
        """Take the first step: settle every row, and give the user's SQL the rows that are applied.

        Raises and is safe to re-run as ``apply``.
        """
        self.settled, self._due, self._is_staged = Settled(), [], False
        apply_part(transaction, self.work, self.part, self._due.append, self.settled, self.guess)
        # A relation of the schema, which stands in for a temporary one, is locked: it is made when its turn has come.
        if self.effect is not None and self._due and transaction.may_use_temp:
            self._stage(transaction, self.effect)
        self._stored_in = transaction

    def _stage(self, transaction: Transaction, effect: Effect) -> None:
        effect.begin(transaction)
        for rows in self._due:
            effect.add(transaction, rows)
        effect.ready(transaction)
        self._is_staged = True
