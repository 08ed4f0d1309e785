"""The position of a run: up to where its input is settled, as this start last saw it committed.

It is stored in the start's row and moved inside a chunk's own transaction, by compare-and-set, and nowhere else. The
same row answers, after a COMMIT whose answer was lost, whether that COMMIT took place: it existed before and was
updated before COMMIT, so a lock on it waits until the transaction in doubt has ended either way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pgonce.db.session import Session
from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Settled
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.doubt import NotEstablished, time_to_look, under_lock
from pgonce.errors import ConfigurationError, LeaseLost, OutcomeUnknown
from pgonce.model.cursor import Position
from pgonce.model.deadline import Deadline


class PositionLost(Exception):
    """The stored position is not the one this start last saw committed. Nothing of the chunk may be committed."""


class PositionReset(Exception):
    """Acknowledged commits are gone from the database; ``held`` is what is stored now, to go on from."""

    def __init__(self, held: Held) -> None:
        super().__init__("acknowledged commits are gone from the database")
        self.held = held


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A position that this start owns: where it is, and the fencing token that may move it."""

    run_id: int
    epoch: int
    token: Any
    replay: bool
    chunks: int
    position: Position


def move(transaction: Transaction, session: Session, held: Held, to: Position, settled: Settled) -> Held:
    """Move the position past a chunk in the open transaction; the result holds once that is committed.

    A start that reads a finished input again leaves the position at the end and only counts its chunks.
    Raises PositionLost when the stored position is not the one held.
    """
    target = held.position if held.replay else to
    found = transaction.row(
        "move_position",
        run_id=held.run_id,
        epoch=held.epoch,
        token=held.token,
        chunks=held.chunks,
        from_position=held.position.offset,
        position=target.offset,
        lines=target.lines,
        digest=target.digest,
        rows_read=settled.rows,
        cents_read=settled.cents,
        already=settled.already.rows,
        already_cents=settled.already.cents,
        failed_again=settled.failed_again.rows,
        failed_again_cents=settled.failed_again.cents,
        pending_again=settled.pending_again.rows,
        pending_again_cents=settled.pending_again.cents,
        late=settled.late.rows,
        late_cents=settled.late.cents,
        backend_pid=session.backend_pid,
        backend_start=session.backend_start,
    )
    if found is None:
        raise PositionLost
    return replace(held, chunks=held.chunks + 1, position=target)


def committed(clerk: Clerk, held: Held, deadline: Deadline) -> bool:
    """Say whether the transaction that moved the held position by one chunk was committed.

    Waits for the transaction in doubt by locking the start's row on the primary, in slices until the deadline.
    Raises OutcomeUnknown at the deadline, LeaseLost when the start's row is not ours any more.
    Safe to re-run: yes; it only reads.
    """
    try:
        row = under_lock(
            clerk, time_to_look(deadline), lambda tx: tx.row("lock_start", run_id=held.run_id, epoch=held.epoch)
        )
    except (NotEstablished, ConfigurationError) as last:
        raise OutcomeUnknown(
            f"COMMIT of chunk {held.chunks + 1} of run {held.run_id} was sent and its answer was lost; whether it took "
            f"place could not be established in time ({last}). Run the same command again: the stored position "
            "decides, and nothing is applied twice.",
            command=f"pgonce resolve {held.run_id} --start {held.epoch} --chunk {held.chunks + 1}",
        ) from last
    return _moved(row, held)


def require_stored(transaction: Transaction, held: Held) -> None:
    """Make sure, in the open transaction, that the position held is the one stored, and keep it so until COMMIT.

    Raises PositionLost when it is not: another start took over, or acknowledged commits are gone.
    Safe to re-run: yes; also when this very start has been ended by the transaction in doubt.
    """
    row = transaction.row("lock_start", run_id=held.run_id, epoch=held.epoch)
    if row is None or (row[0], row[1], row[4]) != (held.token, held.position.offset, held.chunks):
        raise PositionLost


def _moved(row: tuple[Any, ...] | None, held: Held) -> bool:
    if row is None or row[0] != held.token:
        raise LeaseLost(
            f"start {held.epoch} of run {held.run_id} is not stored any more: the database lost acknowledged commits "
            "(a failover or restore). Run the same command again."
        )
    chunks = row[4]
    return bool(chunks == held.chunks + 1)


def reread(clerk: Clerk, held: Held) -> Held:
    """Find out why a position could not be moved: return what is stored if this start may go on from there.

    Raises LeaseLost when another start took over.
    """
    row = clerk.do(lambda tx: tx.row("lock_start", run_id=held.run_id, epoch=held.epoch), commit=False)
    if row is None or row[0] != held.token:
        _moved(row, held)
    assert row is not None
    ended_at, ended_how = row[12], row[13]
    if ended_at is not None:
        raise LeaseLost(
            f"start {held.epoch} of run {held.run_id} does not own the run any more: {ended_how} at {ended_at}. Its "
            "last chunk was rolled back whole; the run goes on elsewhere."
        )
    return replace(held, chunks=row[4], position=Position(row[1], row[2], row[3]))
