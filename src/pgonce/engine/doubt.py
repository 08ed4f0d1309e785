"""Look at rows under their locks, on the primary, until there is an answer or the time is up.

That is how a COMMIT whose answer was lost is resolved: a lock on a row that the transaction in doubt has updated waits
until that transaction has ended either way, and what is read then is final.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.transaction import Transaction
from pgonce.engine.bookkeeping import Clerk
from pgonce.errors import Interrupted, Unreachable
from pgonce.model.deadline import Deadline

Answer = TypeVar("Answer")

# The lock is asked for in slices, so that a stuck server does not hide the deadline.
SLICE_S = 2.0

# A doubt is worth looking into for this long even when the deadline is nearly over: a restart takes about that.
LOOK_S_MIN = 10.0


class NotEstablished(Exception):
    """The rows to be looked at could not be had in time; the text says why."""


def time_to_look(deadline: Deadline) -> Deadline:
    """Return until when a doubt is looked into, where the work it arose in has this deadline."""
    return Deadline.after(max(deadline.left_s(), LOOK_S_MIN), deadline.clock)


def under_lock(clerk: Clerk, until: Deadline, look: Callable[[Transaction], Answer]) -> Answer:
    """Return what ``look`` finds in a transaction of its own, which is rolled back; it is asked again until it answers.

    Raises NotEstablished at the deadline, or when the run is asked to stop; what ``look`` raises.
    Safe to re-run: yes, as often as ``look`` is.
    """
    tries = 0
    while True:
        slice_ = Deadline.after(min(SLICE_S, until.left_s()), until.clock)
        try:
            if tries:
                clerk.sleep(min(clerk.backoff.delay_s(tries, clerk.random), until.left_s()))
            with clerk.session.transaction(slice_, commit=False) as transaction:
                return look(transaction)
        except (DatabaseFailure, Unreachable, CommitInDoubt, Interrupted) as failure:
            tries += 1
            if until.passed or isinstance(failure, Interrupted):
                raise NotEstablished(str(failure)) from failure
