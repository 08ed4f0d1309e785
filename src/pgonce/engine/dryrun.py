"""Rehearse a run: the real thing from the first statement to the last, in one transaction that is rolled back.

The run is the one of ``engine/run.py``, unchanged. It is handed a session whose transactions are all the same open one,
so that nothing in it can commit, and nothing stays: no job, no run, no start, no event, no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pgonce.db.failure import DatabaseFailure, swallowed
from pgonce.db.session import Session
from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Redo
from pgonce.engine.bookkeeping import Clerk, outcome_of
from pgonce.engine.run import Order, run
from pgonce.errors import EffectFailed, PgonceError, Retryable, RunOwned
from pgonce.model.deadline import Deadline
from pgonce.model.limits import WHOLE_DEADLINE_S
from pgonce.model.observer import Observer
from pgonce.model.override import Overrides
from pgonce.model.policy import Verdict
from pgonce.model.report import RunReport
from pgonce.sources import Input

NOT_UNDONE = (
    "values taken from sequences (pgonce's own run number among them)",
    "what a function did outside of the transaction: dblink, foreign servers, COPY TO PROGRAM or a file, HTTP",
    "session-level advisory locks that the effect took, until the connection ended",
)
"""What a rollback does not undo. NOTIFY is no part of it: it is only sent at COMMIT, so nobody heard of it."""


def rehearse(
    clerk: Clerk, source: Input, order: Order, *, observer: Observer, interrupted: Callable[[], bool]
) -> RunReport:
    """Carry out an order in one transaction, as with ``--checkpoint all``, roll it back, and report what would be.

    The effect and its check run for the whole input at once. Bad rows end it only where the order's own limits say so.
    While it goes on it holds the locks that the run would hold. A live owner is never taken over by it.
    Raises what the run would raise; EffectFailed when the effect refuses the rows.
    Safe to re-run: nothing is stored.
    """
    on_error = "stop" if order.limits.stops_at_bad_row else "quarantine"
    limits = replace(order.limits, checkpoint="all", on_error=on_error, workers=1)
    whole = replace(order, limits=limits, take_over=False)
    until = clerk.deadline(order.limits.deadline_s or WHOLE_DEADLINE_S)
    tries, asked = 0, Overrides.of(order.limits.retry_on)
    while True:
        try:
            return _once(clerk, source, whole, until, observer, interrupted)
        except _Again as again:
            if until.passed:
                raise Retryable("other jobs kept storing the same events until the time was used up") from again
        except RunOwned:
            if tries:
                raise
        except DatabaseFailure as failure:
            used_up = tries + 1 >= order.limits.attempts or until.passed
            if used_up or not asked.take(failure.decision, sqlstate=failure.sqlstate, constraint=failure.constraint):
                _judge(failure, used_up)
        tries += 1
        clerk.sleep(min(clerk.backoff.delay_s(tries, clerk.random), until.left_s()))


class _Again(Exception):
    """The rehearsal met something that a run answers by a new transaction; it has only one, and begins anew."""


class _Rehearsal(Session):
    """A session whose every transaction is the one that is open on another session."""

    def __init__(self, session: Session, transaction: Transaction) -> None:
        self._real = session
        self._open = transaction
        self.target, self.schema = session.target, session.schema
        self.backend_pid, self.backend_start = session.backend_pid, session.backend_start

    @contextmanager
    def transaction(self, deadline: Deadline, *, commit: bool = True, snapshot: bool = False) -> Iterator[Transaction]:
        """Hand out the open transaction; its end is not this one's business."""
        if self._open.connection.info.transaction_status.name == "INERROR":
            raise swallowed(self._open.first_failure)
        try:
            yield self._open
        except Redo as redo:
            raise _Again from redo


def _once(
    clerk: Clerk, source: Input, order: Order, until: Deadline, observer: Observer, interrupted: Callable[[], bool]
) -> RunReport:
    with clerk.session.transaction(until, commit=False) as transaction:
        rehearsal = replace(clerk, session=_Rehearsal(clerk.session, transaction))
        report = run(rehearsal, source, order, observer=observer, interrupted=interrupted)
        transaction.before_commit()
        transaction.rows("check_deferred")
        return report


def _judge(failure: DatabaseFailure, used_up: bool) -> None:
    """Return if the rehearsal is to be tried again; raise what the failure means otherwise."""
    verdict = failure.decision.verdict
    if verdict is Verdict.TRANSIENT and not used_up:
        return
    if verdict in (Verdict.TRANSIENT, Verdict.OPERATOR):
        raise outcome_of(failure) from failure.origin
    error: PgonceError = EffectFailed(
        f"the database refused the rehearsal: {failure}. {failure.decision.remedy}. Nothing was written. A run with "
        "--checkpoint chunk would look for the rows to blame and go on with the others",
        sqlstate=failure.sqlstate,
    )
    raise error from failure.origin
