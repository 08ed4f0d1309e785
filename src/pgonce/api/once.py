"""The guarded transaction for a program of one's own, and the loop that runs it again where that is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isasyncgen, isawaitable, isgenerator
from math import inf
from typing import TypeVar

from pgonce.api.database import opened
from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.guarded import GuardedConnection, guarded
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.db.transaction import Transaction
from pgonce.engine.bookkeeping import Clerk, for_an_operator
from pgonce.engine.doubt import NotEstablished, time_to_look, under_lock
from pgonce.errors import ConfigurationError, EffectFailed, OutcomeUnknown, Permanent, PgonceError, Retryable
from pgonce.model.deadline import Deadline
from pgonce.model.limits import ATTEMPTS, CHUNK_DEADLINE_S
from pgonce.model.policy import Verdict
from pgonce.model.tries import Tries

Result = TypeVar("Result")
Look = Callable[[GuardedConnection], bool]
"""Says whether the transaction in doubt was committed: by a row that it changed and that existed before, read under its
lock (``select ... for update``), or for a new key by inserting it ``on conflict do nothing``: if that inserts a row, it
was not committed (what ``look`` writes is rolled back).
Only True and False are answers: a row or a count is not."""


class Once:
    """A connection to one database, for guarded transactions. Made by ``pgonce.connect``; for one thread at a time."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk
        self._is_closed = False

    @contextmanager
    def transaction(
        self, *, deadline_s: float = CHUNK_DEADLINE_S, look: Look | None = None
    ) -> Iterator[GuardedConnection]:
        """Run a block in one READ COMMITTED transaction and commit it durably, or roll it back whole.

        ``deadline_s`` bounds everything in seconds: connecting, statements, locks, COMMIT. ``look`` resolves a COMMIT
        whose answer was lost.
        Raises Retryable when nothing was applied and another try may succeed; Permanent or EffectFailed when it would
        not; ConfigurationError for what the block may not do; OutcomeUnknown when COMMIT was sent and nobody can tell.
        Safe to re-run: after each of these but OutcomeUnknown, for which one has to look first. An interrupt (Ctrl-C,
        or what a signal handler raises) that comes once the transaction is committed says so in a note.
        """
        deadline = self._deadline(deadline_s, look)
        try:
            with (
                self._clerk.session.transaction(deadline) as transaction,
                guarded(transaction) as connection,
            ):
                yield connection
        except DatabaseFailure as failure:
            raise exception_of(failure) from failure.origin
        except CommitInDoubt as doubt:
            if not self._was_committed(doubt, look, deadline):
                raise _lost(doubt) from doubt.origin

    def do(
        self,
        body: Callable[[GuardedConnection], Result],
        *,
        attempts: int = ATTEMPTS,
        deadline_s: float = CHUNK_DEADLINE_S,
        look: Look | None = None,
    ) -> Result:
        """Call ``body`` in a guarded transaction until one is committed for certain; return what it returned then.

        Tried again, from its first statement, is what was certainly not applied and may succeed: with full jitter, at
        most ``attempts`` times, within ``deadline_s`` seconds. Waiting for a lock or a connection uses up no attempt.
        Raises as ``transaction`` does.
        Safe to re-run: ``body`` has to be: it may be called several times, and all but the last were rolled back.
        """
        clerk = self._clerk
        deadline = self._deadline(deadline_s, look)
        if not isinstance(attempts, int) or attempts < 1:
            raise ConfigurationError(f"attempts={attempts!r}: it has to be a whole number above zero")
        tries = Tries()
        results: list[Result] = []
        last: PgonceError
        cause: BaseException
        while True:
            results.clear()
            try:
                with (
                    clerk.session.transaction(deadline) as transaction,
                    guarded(transaction) as connection,
                ):
                    results.append(_done(body(connection)))
            except CommitInDoubt as doubt:
                if self._was_committed(doubt, look if results else None, deadline):
                    break
                tries.in_doubt()
                last, cause = _lost(doubt), doubt.origin
            except DatabaseFailure as failure:
                decision = failure.decision
                tries.failed(decision, failure.sqlstate)
                last, cause = exception_of(failure), failure.origin
                if decision.verdict is not Verdict.TRANSIENT or tries.too_often(decision, failure.sqlstate):
                    last.attempt = tries.attempts
                    raise last from cause
            else:
                break
            tries.total += 1
            if tries.used_up(attempts) or deadline.passed:
                last.attempt = tries.attempts
                raise last from cause
            clerk.sleep(min(clerk.backoff.delay_s(tries.total, clerk.random), deadline.left_s()))
        return results[0]

    def _deadline(self, seconds: float, look: Look | None) -> Deadline:
        if self._is_closed:
            raise ConfigurationError("this connection was closed at the end of its block. Open another one.")
        if not isinstance(seconds, int | float) or not 0 < seconds < inf:
            raise ConfigurationError(f"deadline_s={seconds!r}: it has to be a number of seconds above zero")
        if look is not None and not callable(look):
            raise ConfigurationError(f"look={look!r}: it has to be a function of the connection that returns a bool")
        return Deadline.after(seconds, self._clerk.clock)

    def close(self) -> None:
        """Let nothing more be done with it. Safe to re-run: yes."""
        self._is_closed = True

    def _was_committed(self, doubt: CommitInDoubt, look: Look | None, deadline: Deadline) -> bool:
        """Resolve a COMMIT in doubt; then let pass what interrupted it, if that was the reason."""
        if look is None:
            doubt.pass_interrupt_on(
                "COMMIT had been sent; whether it took place is not known, so look before doing it again"
            )
            raise _unknown(
                f"{doubt}. Look at what the transaction would have changed, under a lock (select ... for update), "
                "before you do it again; with look=... pgonce does that by itself."
            ) from doubt

        def looked(transaction: Transaction) -> object:
            with guarded(transaction) as connection:
                return look(connection)

        try:
            found = under_lock(self._clerk, time_to_look(deadline), looked)
        except NotEstablished as last:
            raise _unknown(
                "COMMIT was sent and its answer was lost; whether it took place could not be established in time "
                f"({last}). Look at what it would have changed, under a lock, before you do it again."
            ) from last
        except (KeyboardInterrupt, SystemExit, GeneratorExit) as interrupt:
            interrupt.add_note(
                "COMMIT had been sent; whether it took place is not known, so look before doing it again"
            )
            raise
        except Exception as error:
            raise _unknown(
                f"COMMIT was sent and its answer was lost, and look failed ({type(error).__name__}: {error}). Look at "
                "what the transaction would have changed, under a lock, before you do it again."
            ) from error
        if found is not True and found is not False:
            raise _unknown(
                f"COMMIT was sent and its answer was lost, and look answered {found!r}, not True or False. Look at "
                "what the transaction would have changed, under a lock, before you do it again; let look return a bool."
            ) from doubt
        doubt.pass_interrupt_on(f"the transaction was looked up: it was {'' if found else 'not '}committed")
        return found


def _done(result: Result) -> Result:
    """Return what a body returned, unless it has only begun: a generator or a coroutine has run nothing yet."""
    if isgenerator(result) or isasyncgen(result) or isawaitable(result):
        raise ConfigurationError(
            f"body returned {type(result).__name__}, so nothing of it was run. Pass a plain function that does its "
            "work before it returns. Nothing was applied."
        )
    return result


def _lost(doubt: CommitInDoubt) -> Retryable:
    return Retryable(
        f"{doubt}. It was looked up: nothing was applied. Run it again; if its COMMIT needs longer, with a longer "
        "deadline_s.",
        sqlstate=doubt.sqlstate,
    )


def _unknown(text: str) -> OutcomeUnknown:
    """Say that nobody knows. No position is stored that would decide when the same call is made again."""
    error = OutcomeUnknown(text)
    error.retryable = False
    return error


@contextmanager
def connect(
    dsn: str | None = None,
    *,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    application: str = "pgonce",
    tell: Callable[[str], None] = lambda _text: None,
) -> Iterator[Once]:
    """Open a database for guarded transactions: ``dsn``, what the environment names, else the embedded server.

    ``application`` is the session's application_name; ``tell`` is told which database it is. The database needs
    pgonce's schema. Raises Unreachable, SchemaMismatch or ConfigurationError.
    Safe to re-run: yes.
    """
    with opened(dsn, embedded=embedded, schema=schema, application=application, tell=tell) as clerk:
        once = Once(clerk)
        try:
            yield once
        finally:
            once.close()


def exception_of(failure: DatabaseFailure) -> PgonceError:
    """Turn a failed transaction into the exception that says what its caller can do."""
    verdict = failure.decision.verdict
    remedy = f" {failure.decision.remedy}" if verdict is Verdict.OPERATOR else ""
    applied = "" if failure.maybe_committed else " Nothing of this transaction was applied."
    text = f"{failure}: {failure.decision.reason}.{applied}{remedy}"
    if verdict is Verdict.OPERATOR:
        return for_an_operator(failure, text)
    kinds = {Verdict.TRANSIENT: Retryable, Verdict.BUG: EffectFailed}
    error = kinds.get(verdict, Permanent)(text, sqlstate=failure.sqlstate)
    error.maybe_committed = failure.maybe_committed
    return error
