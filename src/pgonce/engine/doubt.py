"""Resolve a commit in doubt: ask the primary, in a new transaction, until there is an answer or the time is up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.transaction import Transaction
from pgonce.engine.bookkeeping import Clerk
from pgonce.errors import Interrupted, OutcomeUnknown, Unreachable
from pgonce.model.deadline import Deadline

Answer = TypeVar("Answer")

# How long one look waits for the row's lock, which the transaction in doubt may still hold.
SLICE_S = 2.0

# A doubt is worth looking into for this long even when the deadline is nearly over: a restart takes about that.
LOOK_S_MIN = 10.0


def established(clerk: Clerk, look: Callable[[Transaction], Answer], deadline: Deadline, *, unknown: str) -> Answer:
    """Return what ``look`` finds out in a transaction of its own, which is rolled back.

    ``look`` reads a row under its lock, so it waits for the transaction in doubt; it is asked again, in slices, until
    it answers. Raises OutcomeUnknown with the text ``unknown`` and the last reason when the time is up.
    Safe to re-run: yes; it only reads.
    """
    until = Deadline.after(max(deadline.left_s(), LOOK_S_MIN), deadline.clock)
    tries = 0
    while True:
        slice_ = Deadline.after(min(SLICE_S, until.left_s()), deadline.clock)
        try:
            if tries:
                clerk.sleep(min(clerk.backoff.delay_s(tries, clerk.random), until.left_s()))
            with clerk.session.transaction(slice_, commit=False) as transaction:
                return look(transaction)
        except (DatabaseFailure, Unreachable, CommitInDoubt, Interrupted) as failure:
            if until.passed or isinstance(failure, Interrupted):
                raise OutcomeUnknown(unknown.format(reason=failure)) from failure
        tries += 1
