"""Settle a chunk for good: commit it, try it again, resolve its doubt, or take it apart to find the row to blame.

The position only passes rows that are settled in committed transactions. A chunk that fails for a reason in its rows is
halved, each half in transactions of its own and in input order, until the bad row stands alone; it is then recorded as
``failed``, or as ``pending`` when its attempts are used up. A chunk that fails for any other reason ends the run with
the position before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Redo, Settled, Work, refuse_row
from pgonce.engine.applying import Applying
from pgonce.engine.batch import Columns
from pgonce.engine.bookkeeping import INTERRUPTED, Clerk, for_an_operator
from pgonce.engine.effect import Effect
from pgonce.engine.fast import Guess
from pgonce.engine.position import Held, PositionLost, PositionReset, committed, move, reread
from pgonce.engine.workers import Ahead
from pgonce.errors import EffectFailed, Interrupted, InvariantBroken, Retryable, StopRequested
from pgonce.model.chunk import Chunk
from pgonce.model.cursor import Position
from pgonce.model.deadline import Deadline
from pgonce.model.limits import REFUSED_EVENTS_MAX, Limits
from pgonce.model.observer import Observer, Step
from pgonce.model.override import Overrides
from pgonce.model.policy import Verdict
from pgonce.model.row import Finding, Row
from pgonce.model.tries import Tries

Body = Callable[[Transaction], tuple[Settled, Position]]
"""What runs inside a chunk's transaction: it settles rows and says up to where the input is settled by them."""


class Unsettled(Exception):
    """A chunk's rows are to blame, or its attempts are used up.

    ``attempts`` are those that count on the event: a crash is none.
    """

    def __init__(self, failure: DatabaseFailure, attempts: int, status: str) -> None:
        super().__init__(str(failure))
        self.failure, self.attempts, self.status = failure, attempts, status


class _SettledMeanwhile(Exception):
    """A row that was to be refused has been settled by another run."""


class _BadRow(Exception):
    """A row that ends the run was met; it is the chunk's row number ``index``."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index


@dataclass(slots=True)
class Settler:
    """Settles chunk after chunk of one start, and holds its position as it was last seen committed."""

    clerk: Clerk
    work: Work
    held: Held
    limits: Limits
    effect: Effect | None
    observer: Observer
    interrupted: Callable[[], bool]
    guess: Guess = field(default_factory=Guess)
    bad_rows: int = 0
    refused_events: int = 0

    def settle(self, chunk: Chunk | Columns, ahead: Ahead | None = None) -> None:
        """Settle every row of a chunk, moving the position past it; it may have been begun ahead of its turn.

        Raises StopRequested, EffectFailed, Retryable, LeaseLost or OutcomeUnknown with the position before the row that
        is not settled; PositionReset when acknowledged commits are gone and the input has to be read again.
        Safe to re-run: yes.
        """
        parts = [chunk]
        while parts:
            part = parts.pop()
            applying = self.applying(part, self.guess) if ahead is None else ahead.applying
            try:
                self.until_committed(part.first_line, *self._applying(applying), ahead)
            except _BadRow as bad:
                self._stop_at(part.by_row(), bad)
            except Unsettled as unsettled:
                if part.size > 1:
                    earlier, later = part.by_row().halves()
                    parts += [later, earlier]
                else:
                    self._refuse(part.by_row(), unsettled)
            ahead = None

    def applying(self, part: Chunk | Columns, guess: Guess) -> Applying:
        """Make of a part what applies it."""
        return Applying(work=self.work, part=part, effect=self.effect, guess=guess)

    def _applying(self, applying: Applying) -> tuple[Body, Callable[[], int | None]]:
        """Give the body that applies a part, and how many attempts the event has left, where it stands alone."""
        part = applying.part

        def body(transaction: Transaction) -> tuple[Settled, Position]:
            applying.apply(transaction)
            self._check_bad_rows(part, applying.settled)
            return applying.settled, part.end.position

        def allowed() -> int | None:
            return applying.settled.attempts_left if part.size == 1 else None

        return body, allowed

    def until_committed(
        self,
        line: int,
        body: Body,
        allowed: Callable[[], int | None] | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        """Run the body and the move to the position it returns in one transaction, until that is committed for certain.

        ``line`` is where the rows begin, for messages; ``allowed`` says how many attempts that count on the event there
        are, beside this start's limit. The first transaction may have been begun ``ahead``; if it fails before SQL of
        the user ran in it, that was no attempt.
        Raises Unsettled when the rows are to blame.
        """
        deadline, asked = self._deadline(), Overrides.of(self.limits.retry_on)
        tries = Tries()
        while True:
            if self.interrupted():
                raise Interrupted(INTERRUPTED)
            moved: Held | None = None
            begun = ahead if ahead is not None and ahead.transaction is not None else None
            ahead = None
            try:
                with begun or self.clerk.session.transaction(deadline) as transaction:
                    owner = self.clerk.session
                    if begun is not None:
                        owner = owner if owner.is_connected else begun.session
                        begun.session.extend(transaction, deadline)
                    settled, to = body(transaction)
                    moved = move(transaction, owner, self.held, to, settled)
                return self._commit_seen(settled, moved)
            except Redo:
                self._pass_or_raise(deadline)
                continue
            except PositionLost:
                raise self._reset(line) from None
            except CommitInDoubt as doubt:
                was_committed = committed(self.clerk, self.held, deadline)
                doubt.pass_interrupt_on(f"the chunk was looked up: it was {'' if was_committed else 'not '}committed")
                if was_committed:
                    if moved is None:
                        raise self._reset(line) from doubt
                    return self._commit_seen(settled, moved)
                self._tell_retry(None, str(doubt))
                tries.in_doubt()
                if tries.used_up(self.limits.attempts):
                    raise Retryable(
                        f"the outcome of the chunk from line {line} was in doubt once too often, attempt "
                        f"{tries.attempts} of {self.limits.attempts}; each time a look at the position showed that it "
                        f"had not been committed. The last time: {doubt}. Run the same command again; if its COMMIT "
                        "needs longer, with a longer --chunk-deadline.",
                        sqlstate=doubt.sqlstate,
                        attempt=tries.attempts,
                    ) from doubt.origin
            except DatabaseFailure as failure:
                if begun is not None and not transaction.runs_user_sql:
                    continue
                tries.failed(failure.decision, failure.sqlstate)
                used_up = tries.used_up(self.limits.attempts, allowed() if allowed else None)
                if used_up or deadline.passed or not _asked_again(asked, failure):
                    self._judge(failure, line, tries, deadline, used_up=used_up)
                self._tell_retry(failure.sqlstate, str(failure))
            tries.total += 1
            self.clerk.sleep(min(self.clerk.backoff.delay_s(tries.total, self.clerk.random), deadline.left_s()))

    def _reset(self, line: int) -> PositionReset:
        """Find out where to go on from after the position could not be moved.

        Raises EffectFailed when nothing but the chunk's own transaction can have changed it: that would never end.
        """
        stored = reread(self.clerk, self.held)
        if stored == self.held:
            raise EffectFailed(
                f"the chunk from line {line} was rolled back: inside its own transaction, the row of this start in "
                "pgonce.start was changed or deleted, by the effect or by a trigger. Take that out and run again"
            )
        return PositionReset(stored)

    def _deadline(self) -> Deadline:
        """Return the deadline of a chunk: its own, or that of the whole start if it comes first."""
        if self.clerk.until is not None and self.clerk.until.passed:
            raise Retryable(
                f"the deadline of this start has passed at line {self.held.position.lines}. What is committed stays; "
                "run the same command again to go on."
            )
        return self.clerk.deadline(self.limits.transaction_s)

    def _judge(self, failure: DatabaseFailure, line: int, tries: Tries, deadline: Deadline, *, used_up: bool) -> None:
        """Return if the chunk is to be tried again; raise what becomes of it otherwise."""
        decision = failure.decision
        where = f"the chunk from line {line} was rolled back: {failure}"
        if decision.verdict is Verdict.PERMANENT:
            raise Unsettled(failure, tries.charged, "failed") from failure
        if decision.verdict is Verdict.REPLAY_CHECK:
            raise InvariantBroken(
                f"{where}. An effect stands without its completed event; see pgonce reconcile"
            ) from failure.origin
        if decision.verdict is Verdict.OPERATOR:
            raise for_an_operator(failure, f"{where}. {decision.remedy}") from failure.origin
        if decision.verdict is not Verdict.TRANSIENT:
            error = EffectFailed(f"{where}. {decision.remedy}", sqlstate=failure.sqlstate)
            error.maybe_committed, error.attempt = failure.maybe_committed, tries.attempts
            raise error from failure.origin
        used_up = used_up or tries.too_often(decision, failure.sqlstate)
        if used_up and decision.burns_attempt:
            raise Unsettled(failure, tries.charged, "pending") from failure
        if deadline.passed:
            raise Retryable(f"{where}. Its time was used up; run the same command again.") from failure.origin

    def _pass_or_raise(self, deadline: Deadline) -> None:
        if deadline.passed:
            raise Retryable("other jobs kept storing the same events until the time was used up. Run again.")

    def _commit_seen(self, settled: Settled, moved: Held) -> None:
        self.held = moved
        self.bad_rows += settled.bad_rows
        self.hook(lambda: self.observer.committed(_step(settled, moved.position)))

    def _tell_retry(self, sqlstate: str | None, reason: str) -> None:
        self.hook(lambda: self.observer.retried(sqlstate, reason))

    @staticmethod
    def hook(tell: Callable[[], None]) -> None:
        """Tell an observer something; whatever it raises is swallowed."""
        try:
            tell()
        except Exception:  # noqa: BLE001 - who looks on cannot break a job
            return

    def _check_bad_rows(self, part: Chunk | Columns, settled: Settled) -> None:
        """Before COMMIT: does one of these rows end the run? Raises _BadRow for the first that does."""
        ending = self.ending_row(settled, self.bad_rows)
        if ending is not None:
            line, reason = ending
            index = next(number for number, entry in enumerate(part.by_row().entries) if entry.row.line == line)
            raise _BadRow(index, f"line {line}: {reason}")

    def ending_row(self, settled: Settled, before: int) -> tuple[int, str] | None:
        """Name the line, and its reason, of the first bad row that the limits do not allow; ``before`` were there."""
        allowed = 0 if self.limits.stops_at_bad_row else self.limits.max_rejected
        bad = {finding.line: finding.reason for finding in settled.findings}
        bad |= {row.line: error for row, error in settled.refused}
        left = None if allowed is None else max(0, allowed - before)
        if left is None or len(bad) <= left:
            return None
        line = sorted(bad)[left]
        return line, bad[line]

    def _stop_at(self, part: Chunk, bad: _BadRow) -> None:
        """Settle the rows before a bad row, then end the run there."""
        before = part.until(bad.index)
        if before.entries:
            self.settle(before)
        raise StopRequested(
            f"stopped at a bad row, as asked: {bad}. The rows before it are applied, the row is not. Correct it and "
            "run again, or run with --on-error quarantine (and a higher --max-rejected)."
        )

    def _refuse(self, part: Chunk, unsettled: Unsettled) -> None:
        """Record a single row that cannot be applied: ``failed``, or ``pending`` with its attempts."""
        row = part.entries[0].row
        if isinstance(row, Finding):
            raise EffectFailed(f"line {row.line} has no event, and yet its chunk failed: {unsettled}")
        error = str(unsettled.failure)
        if self.limits.stops_at_bad_row or self._too_many_bad():
            raise _stopped(row, error, unsettled.status)
        self.refused_events += 1
        if self.refused_events > REFUSED_EVENTS_MAX:
            raise Retryable(
                f"more than {REFUSED_EVENTS_MAX} events were refused one by one; the fault is hardly in the rows. The "
                f"last: {error}. The run stopped before line {row.line}; correct the effect and run again."
            )
        try:
            self.until_committed(row.line, self._refusing(part, row, unsettled))
        except _SettledMeanwhile:
            self.settle(part)
        except Unsettled as again:
            raise Retryable(f"line {row.line} could not be recorded as {unsettled.status}: {again}") from again

    def _refusing(self, part: Chunk, row: Row, unsettled: Unsettled) -> Body:
        def body(transaction: Transaction) -> tuple[Settled, Position]:
            try:
                settled = refuse_row(
                    transaction,
                    self.work,
                    row,
                    status=unsettled.status,
                    error=str(unsettled.failure),
                    attempts=unsettled.attempts,
                )
            except Redo:
                raise _SettledMeanwhile from None
            return settled, part.end.position

        return body

    def _too_many_bad(self) -> bool:
        return self.limits.max_rejected is not None and self.bad_rows >= self.limits.max_rejected


def _asked_again(asked: Overrides, failure: DatabaseFailure) -> bool:
    return asked.take(failure.decision, sqlstate=failure.sqlstate, constraint=failure.constraint)


def _stopped(row: Row, error: str, status: str) -> Retryable | StopRequested:
    if status == "pending":
        return Retryable(f"line {row.line}, event {row.event_id!r}: {error}. Its attempts are used up; run again.")
    return StopRequested(
        f"stopped at a bad row, as asked: line {row.line}, event {row.event_id!r}: {error}. The rows before it are "
        "applied, the row is not. Correct it and run again, or run with --on-error quarantine."
    )


def _step(settled: Settled, position: Position) -> Step:
    found = settled.results
    return Step(
        position=position,
        rows=settled.rows,
        applied=found["applied"],
        already=found["already"],
        failed=found["failed"],
        conflict=found["conflict"],
        rejected=found["rejected"],
        pending=found["pending"],
    )
