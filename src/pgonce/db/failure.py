"""What became of a transaction that did not simply commit, in terms the engine can decide by."""

from __future__ import annotations

import psycopg

from pgonce.db.deferred import Pending
from pgonce.model.policy import Decision, Failure, Phase, Verdict, decide

# The server's function that waits for a synchronous standby inside COMMIT. Its name comes with the notice and is never
# translated; a RAISE WARNING in a deferred trigger has the same severity and SQLSTATE, but another function.
SYNCHRONOUS_WAIT = "SyncRepWaitForLSN"

EVENT_KEY = "event_pkey"

OUR_KEYS = (EVENT_KEY, "effect_pkey")
"""Keys of pgonce: who meets one compares what is stored, and never just tries again."""


class CommitInDoubt(Exception):
    """COMMIT was sent and no definite answer came. Never success, never failure: it has to be resolved by a row.

    ``pending`` are the signals that were put off meanwhile.
    """

    pending: Pending | None = None

    @property
    def origin(self) -> BaseException:
        """What the driver said, or whatever else interrupted COMMIT."""
        return self.__cause__ or self

    @property
    def sqlstate(self) -> str | None:
        """The SQLSTATE of the answer, if there was one."""
        return getattr(self.__cause__, "sqlstate", None)

    def pass_interrupt_on(self, note: str) -> None:
        """Raise what interrupted COMMIT, or a signal put off since, with a note of how the doubt was resolved."""
        cause = self.__cause__
        try:
            if cause is not None and not isinstance(cause, psycopg.Error):
                raise cause
            if self.pending is not None:
                self.pending.deliver()
        except BaseException as interrupt:
            interrupt.add_note(note)
            raise


class DatabaseFailure(Exception):
    """A transaction ended without being applied; ``decision`` says what the policy makes of it.

    ``constraint`` is the one that the server named, qualified by its schema. ``maybe_committed`` says that something in
    the transaction ended it, so what ran before may be committed.
    """

    maybe_committed = False

    def __init__(
        self, message: str, decision: Decision, *, sqlstate: str | None = None, constraint: str | None = None
    ) -> None:
        super().__init__(message)
        self.decision = decision
        self.sqlstate = sqlstate
        self.constraint = constraint

    @property
    def origin(self) -> BaseException:
        """The driver's error, where there was one."""
        return self.__cause__ or self


def standby(label: str) -> DatabaseFailure:
    """Say that the server is a standby: nothing can be written there, a primary may be back soon."""
    return _of_code(f"the {label} is a standby that accepts no writes", "25006", standby=True)


def swallowed(first: str | None) -> DatabaseFailure:
    """Say that a statement failed and somebody carried on: COMMIT would have rolled back without a word."""
    which = f"; the first that failed was {first}" if first else ""
    return _of_code(f"a statement failed inside the transaction and the error was ignored{which}", "25P02")


def ended_inside(status: str) -> DatabaseFailure:
    """Say that something that ran in the transaction ended it."""
    return _cut_short(f"the transaction was ended by a statement in it (now {status})", "25P01")


def replaced_inside() -> DatabaseFailure:
    """Say that another transaction stands where the one that was begun should be, or that its guards were put down."""
    return _cut_short(
        "a statement in the transaction committed it and began another, or changed session_replication_role", "25001"
    )


def _cut_short(message: str, sqlstate: str) -> DatabaseFailure:
    failure = _of_code(f"{message}; what ran before that statement may be committed", sqlstate)
    failure.maybe_committed = True
    return failure


def rolled_back(tag: str) -> DatabaseFailure:
    """Say that COMMIT was answered with another tag than COMMIT."""
    failure = Failure(phase=Phase.COMMIT, severity=None, commit_answered_rollback=True)
    return DatabaseFailure(f"the server answered COMMIT with {tag}: nothing was applied", decide(failure))


def refused_by_check(message: str) -> DatabaseFailure:
    """Say that the user's own check found rows: the reason lies in the chunk's rows."""
    return _of_code(message, "P0001")


def _of_code(message: str, sqlstate: str, *, standby: bool = False) -> DatabaseFailure:
    decision = decide(Failure(phase=Phase.STATEMENT, severity="ERROR", sqlstate=sqlstate, standby=standby))
    return DatabaseFailure(message, decision, sqlstate=sqlstate)


def tells_degraded(notice: psycopg.errors.Diagnostic) -> bool:
    """Say whether a notice tells that COMMIT took place without the synchronous standby that it waited for."""
    if notice.source_function != SYNCHRONOUS_WAIT:
        return False
    seen = Failure(phase=Phase.COMMIT, severity=notice.severity_nonlocalized, sqlstate=notice.sqlstate)
    return decide(seen).verdict is Verdict.COMMITTED


def failure_of(error: psycopg.Error, phase: Phase, *, schema: str, alive: bool, timed_out: bool) -> DatabaseFailure:
    """Turn the driver's error into a failure with a decision. The text is the server's own, on one line.

    ``alive`` says whether the connection survived, ``timed_out`` whether our own deadline had passed.
    """
    diag = error.diag
    constraint = f"{diag.schema_name}.{diag.constraint_name}" if diag.constraint_name else None
    decision = decide(
        Failure(
            phase=phase,
            severity=diag.severity_nonlocalized,
            sqlstate=error.sqlstate,
            constraint=constraint,
            ours=frozenset(f"{schema}.{name}" for name in OUR_KEYS),
            timed_out_by_us=timed_out,
            connection_alive=alive,
        )
    )
    text = diag.message_primary or str(error).strip() or type(error).__name__
    detail = f" ({diag.message_detail})" if diag.message_detail else ""
    code = f" [{error.sqlstate}]" if error.sqlstate else ""
    where = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    message = " ".join(f"{text}{detail}{code}{where}".split())
    return DatabaseFailure(message, decision, sqlstate=error.sqlstate, constraint=constraint)
