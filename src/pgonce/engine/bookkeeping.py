"""Small transactions beside the chunks: registering, taking over, finishing. Each may be done again without harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.session import Session
from pgonce.db.transaction import Transaction
from pgonce.errors import ConfigurationError, OutcomeUnknown, Permanent, PgonceError, Retryable
from pgonce.model.backoff import Backoff
from pgonce.model.deadline import Deadline
from pgonce.model.policy import Cure, Verdict

Result = TypeVar("Result")

# Bookkeeping touches a handful of rows; what keeps it longer is somebody's lock or a server that is gone.
BOOKKEEPING_S = 30.0

INTERRUPTED = "stopped as asked, between two chunks. What is committed stays; run the same command again to go on."


@dataclass(frozen=True, slots=True, kw_only=True)
class Clerk:
    """Does bookkeeping on a session, with a clock, a sleep and randomness handed in.

    ``until`` is when the whole command has to end, if it has to.
    """

    session: Session
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    random: Callable[[], float]
    backoff: Backoff
    patience_s: float = BOOKKEEPING_S
    until: Deadline | None = None

    def deadline(self, seconds: float) -> Deadline:
        """Make the deadline of something that may take this long, within that of the whole command."""
        return Deadline.after(seconds, self.clock).at_most(self.until)

    def do(
        self,
        body: Callable[[Transaction], Result],
        *,
        commit: bool = True,
        snapshot: bool = False,
        run_id: int | None = None,
    ) -> Result:
        """Run a body that may be run again, until its transaction is committed for certain.

        Transient failures and in-doubt commits are answered by doing it again, until the time is up. ``run_id`` is the
        run that it is about, for whoever has to look it up.
        Raises Retryable, ConfigurationError or OutcomeUnknown then, or what the body raises. Once a COMMIT was in
        doubt, whatever ends it without an answer is OutcomeUnknown.
        Safe to re-run: only for bodies that are.
        """
        until = self.deadline(self.patience_s)
        tries = 0
        doubted: CommitInDoubt | None = None
        while True:
            try:
                with self.session.transaction(until, commit=commit, snapshot=snapshot) as transaction:
                    result = body(transaction)
            except DatabaseFailure as failure:
                if failure.decision.verdict is not Verdict.TRANSIENT or until.passed:
                    raise _unknown(doubted, failure, run_id) if doubted else outcome_of(failure) from failure.origin
            except CommitInDoubt as doubt:
                doubt.pass_interrupt_on("run the same command again: it finds out what became of this COMMIT")
                doubted = doubt
                if until.passed:
                    raise _unknown(doubt, None, run_id) from doubt.origin
            except PgonceError as error:
                if doubted is None or error.maybe_committed:
                    raise
                if isinstance(error, Retryable):
                    raise _unknown(doubted, error, run_id) from error
                error.maybe_committed = True
                error.add_note(f"an earlier try may have been committed: {doubted}")
                raise
            else:
                return result
            tries += 1
            self.sleep(min(self.backoff.delay_s(tries, self.random), until.left_s()))


def _unknown(doubt: CommitInDoubt, last: Exception | None, run_id: int | None) -> OutcomeUnknown:
    """Say that a COMMIT was in doubt, and that nothing since has settled it."""
    since = f"; then: {last}" if last is not None else ""
    return OutcomeUnknown(
        f"{doubt}{since}. Look at what is stored before you do it again.",
        sqlstate=doubt.sqlstate,
        command=None if run_id is None else f"pgonce resolve {run_id}",
    )


def read_only(transaction: Transaction) -> Transaction:
    """Let the server refuse every write of the open transaction, and return it. Safe to re-run: yes."""
    transaction.row("set_read_only")
    return transaction


def outcome_of(failure: DatabaseFailure) -> PgonceError:
    """Turn a failure that is not tried again into the exception for the caller."""
    text = f"{failure}: {failure.decision.reason}. {failure.decision.remedy}"
    if failure.decision.verdict is Verdict.TRANSIENT:
        return Retryable(text, sqlstate=failure.sqlstate)
    if failure.decision.verdict is Verdict.OPERATOR:
        return for_an_operator(failure, text)
    return ConfigurationError(text, sqlstate=failure.sqlstate)


def for_an_operator(failure: DatabaseFailure, text: str) -> PgonceError:
    """Make the exception of an OPERATOR's verdict: does it help to run again, to configure, or to repair the server?"""
    kinds = {Cure.RUN_AGAIN: Retryable, Cure.CONFIGURE: ConfigurationError, Cure.REPAIR: Permanent}
    return kinds[failure.decision.cure](text, sqlstate=failure.sqlstate)
