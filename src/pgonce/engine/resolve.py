"""Say for certain up to where a run is settled: what an unknown outcome asks for, at a later time.

The rows of the run and of its start are read under their locks, on the primary. Whoever begins, moves, ends or finishes
a start updates one of them before its COMMIT, so a lock on them waits until a transaction in doubt has ended either
way; what is read then is final. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from pgonce.db.failure import DatabaseFailure
from pgonce.db.schema import require_current
from pgonce.db.transaction import Transaction
from pgonce.engine import ownership
from pgonce.engine.bookkeeping import BOOKKEEPING_S, Clerk, outcome_of
from pgonce.engine.doubt import NotEstablished, under_lock
from pgonce.errors import ConfigurationError, EventNotFound, OutcomeUnknown, Unreachable
from pgonce.model.deadline import Deadline

# Who holds the rows is told as well as it can be; the answer is wanted at once or not at all.
HOLDERS_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be resolved: all runs whose newest start has not ended, or one run.

    ``epoch`` is the start in doubt (None: the newest) and ``chunk`` the number of its chunk whose COMMIT was.
    """

    run_id: int | None = None
    epoch: int | None = None
    chunk: int | None = None
    deadline_s: float = BOOKKEEPING_S

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < inf:
            raise ConfigurationError(f"--deadline {self.deadline_s}: it has to be a number above zero")
        if self.run_id is None and (self.epoch is not None or self.chunk is not None):
            raise ConfigurationError("--start and --chunk are those of one run: name it")
        for name, number in (("start", self.epoch), ("chunk", self.chunk)):
            if number is not None and number < 1:
                raise ConfigurationError(f"--{name} {number}: it is counted from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is stored of a start of a run, read under its lock.

    ``state`` is ``running`` (its owner is alive), ``gone`` (not ended, and the owner is), ``ended``, ``missing`` (no
    such start is stored), ``registered`` (no start was begun), or ``unknown``. ``committed`` says whether the chunk
    asked for was; None if none was, or the state is unknown. ``lines`` and ``position_bytes`` say up to where the input
    of ``input_bytes`` is settled, by ``chunks`` chunks of this start; ``finished`` that the run is.
    """

    run_id: int
    state: str
    next: str
    job: str = ""
    input_name: str = ""
    epoch: int = 0
    chunk: int | None = None
    committed: bool | None = None
    chunks: int = 0
    lines: int = 0
    position_bytes: int = 0
    input_bytes: int = 0
    finished: bool = False
    ended_how: str | None = None

    @property
    def established(self) -> bool:
        """Say whether this is certain."""
        return self.state != "unknown"

    @property
    def is_there(self) -> bool:
        """Say whether the start that is asked for is stored, and the chunk one that it can have sent."""
        beyond = self.chunk is not None and self.established and self.chunk > self.chunks + 1
        return self.state != "missing" and not beyond

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "run": self.run_id,
            "job": self.job,
            "input": self.input_name,
            "start": self.epoch,
            "established": self.established,
            "state": self.state,
            "chunk": self.chunk,
            "committed": self.committed,
            "chunks": self.chunks,
            "lines": self.lines,
            "position_bytes": self.position_bytes,
            "input_bytes": self.input_bytes,
            "finished": self.finished,
            "ended_how": self.ended_how,
            "next": self.next,
        }


def resolve(clerk: Clerk, question: Question) -> list[Resolved]:
    """Say of each run that is asked for what is stored; a run that is held for too long is ``unknown``.

    Waits up to ``deadline_s`` seconds for all of them together, and tries each at least once.
    Raises EventNotFound for a run that is not stored; Unreachable, OutcomeUnknown if not even the list could be had.
    Safe to re-run: it only reads.
    """
    until = Deadline.after(question.deadline_s, clerk.clock)
    try:
        runs = under_lock(clerk, until, lambda transaction: _asked_for(transaction, question))
    except NotEstablished as last:
        if isinstance(last.__cause__, Unreachable):
            raise last.__cause__ from last
        if isinstance(last.__cause__, DatabaseFailure):
            error = outcome_of(last.__cause__)
            if isinstance(error, ConfigurationError):
                raise error from last
        raise OutcomeUnknown(
            f"what is stored could not be read on a primary within {question.deadline_s:.0f} s ({last}). Look whether "
            "the address leads to the primary and the server is well; then ask again"
        ) from last
    return [_resolve(clerk, until, run_id, question) for run_id in runs]


def _asked_for(transaction: Transaction, question: Question) -> Sequence[int]:
    require_current(transaction)
    if question.run_id is None:
        return [int(row[0]) for row in transaction.rows("unended_starts")]
    if transaction.row("job_of_run", run_id=question.run_id) is None:
        raise EventNotFound(f"there is no run {question.run_id} in this database; pgonce runs lists them")
    return [question.run_id]


def _resolve(clerk: Clerk, until: Deadline, run_id: int, question: Question) -> Resolved:
    try:
        return under_lock(clerk, until, _look(clerk, run_id, question))
    except NotEstablished as last:
        holders = _holders(clerk, run_id)
        return Resolved(
            run_id=run_id,
            state="unknown",
            epoch=question.epoch or 0,
            chunk=question.chunk,
            next=f"not established in time ({last}). {holders} When it has ended, ask again: pgonce resolve {run_id}",
        )


def _look(clerk: Clerk, run_id: int, question: Question) -> Callable[[Transaction], Resolved]:
    def look(transaction: Transaction) -> Resolved:
        run = transaction.row("lock_run", run_id=run_id)
        if run is None:
            raise EventNotFound(f"run {run_id} is not stored any more; pgonce runs lists them")
        job, newest, finished, input_bytes = run[0], run[4], run[5] is not None, run[8]
        epoch = question.epoch or newest
        start = transaction.row("lock_start", run_id=run_id, epoch=epoch) if epoch else None
        if start is None:
            return Resolved(
                run_id=run_id,
                state="missing" if epoch else "registered",
                job=job,
                epoch=epoch,
                chunk=question.chunk,
                committed=None if question.chunk is None else False,
                input_bytes=input_bytes,
                finished=finished,
                next=_next_without(epoch, newest),
            )
        ended = start[12] is not None
        alive = not ended and ownership.alive(transaction, clerk.session, start)
        state = "ended" if ended else "running" if alive else "gone"
        return Resolved(
            run_id=run_id,
            state=state,
            job=job,
            input_name=start[6],
            epoch=epoch,
            chunk=question.chunk,
            committed=None if question.chunk is None else start[4] >= question.chunk,
            chunks=start[4],
            lines=start[2],
            position_bytes=start[1],
            input_bytes=input_bytes,
            finished=finished,
            ended_how=start[13],
            next=_next(state, start, epoch, newest, finished=finished),
        )

    return look


def _next(state: str, start: tuple[Any, ...], epoch: int, newest: int, *, finished: bool) -> str:
    """Say what to do, now that it is known how things stand."""
    if state == "running":
        return f"start {epoch} by {start[7]} is at work; wait for it (--wait), or take it over (--take-over)"
    if epoch < newest:
        return f"start {newest} went on from there: pgonce resolve RUN without --start shows how far it is"
    if finished and state == "ended":
        return "nothing; the run is finished, and the same command again changes nothing"
    return "run the same command again: it goes on behind that line, and nothing is applied twice"


def _next_without(epoch: int, newest: int) -> str:
    if not epoch:
        return "run the same command again: no start of the run was begun, and nothing of it is applied"
    return (
        f"run the same command again. The run is at start {newest}: either the number is wrong, or the database lost "
        "acknowledged commits (a failover or restore), and this start with all it did"
    )


def _holders(clerk: Clerk, run_id: int) -> str:
    """Say who holds the rows, as well as it can be told; never raises."""
    found: list[tuple[Any, ...]] = []
    with suppress(DatabaseFailure, Unreachable):
        deadline = Deadline.after(HOLDERS_S, clerk.clock)
        with clerk.session.transaction(deadline, commit=False) as transaction:
            found = transaction.rows("holders_of_run", run_id=run_id)
    words = [
        f"backend {pid} (see pg_stat_activity; select pg_terminate_backend({pid}) ends it)"
        if pid is not None
        else f"the prepared transaction {gid!r} (see pg_prepared_xacts; commit or roll it back)"
        for pid, gid in found
    ]
    if words:
        return f"Its rows are held by {' and '.join(words)}."
    return "Look in pg_stat_activity and pg_prepared_xacts for who holds its rows, and at the server's log."
