"""The whole input in one transaction: everything is applied, or nothing is.

The input is read in chunks all the same, so that memory stays constant; the transaction ends with the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Settled
from pgonce.engine.batch import ColumnBatch, Columns
from pgonce.engine.bookkeeping import INTERRUPTED
from pgonce.engine.effect import Effect
from pgonce.engine.fast import apply_part
from pgonce.engine.settle import Settler, Unsettled
from pgonce.errors import EffectFailed, Interrupted, Retryable, StopRequested
from pgonce.model.chunk import Chunk
from pgonce.model.cursor import Position
from pgonce.model.row import Row


def settle_whole(settler: Settler, read: Callable[[], Iterator[Chunk | Columns]], effect: Effect | None) -> None:
    """Settle all chunks that ``read`` yields in one transaction; it is called again for every attempt.

    Raises StopRequested at a row that the limits do not allow, EffectFailed when the effect refuses the rows: nothing
    of the input is applied then.
    Safe to re-run: yes.
    """

    def body(transaction: Transaction) -> tuple[Settled, Position]:
        return _apply_all(transaction, settler, read(), effect)

    try:
        settler.until_committed(1, body)
    except Unsettled as unsettled:
        if unsettled.status == "pending":
            raise Retryable(f"nothing was applied: {unsettled}. Run the same command again.") from unsettled
        raise EffectFailed(
            f"nothing was applied: {unsettled}. Correct the rows, or run with --checkpoint chunk to have only the bad "
            "rows refused."
        ) from unsettled


def _apply_all(
    transaction: Transaction, settler: Settler, chunks: Iterator[Chunk | Columns], effect: Effect | None
) -> tuple[Settled, Position]:
    total, position, begun, bad = Settled(), settler.held.position, False, settler.bad_rows
    for chunk in chunks:
        if settler.interrupted():
            raise Interrupted(INTERRUPTED)
        settled, due = Settled(), list[Sequence[Row] | ColumnBatch]()
        apply_part(transaction, settler.work, chunk, due.append, settled, settler.guess, asking=True)
        ending = settler.ending_row(settled, bad)
        if ending is not None:
            raise StopRequested(
                f"nothing was applied: line {ending[0]}: {ending[1]}. Correct the row and run again, or run with "
                "--on-error quarantine."
            )
        if effect is not None and due:
            if not begun:
                effect.begin(transaction)
                begun = True
            for rows in due:
                effect.add(transaction, rows)
        bad += settled.bad_rows
        total.include(settled)
        position = chunk.end.position
    if effect is not None and begun:
        effect.ready(transaction)
        effect.finish(transaction)
    return total, position
