"""What an error means and what to do about it, decided by phase, then severity, then SQLSTATE.

1. **After COMMIT was answered** nothing can undo the success; an error there is reported and changes nothing.
2. **Before there is a connection** nothing was sent: try until the deadline, unless the server refused us by name.
3. **COMMIT sent**: an ERROR is a certain abort, save for the few codes that themselves tell of doubt (08, 40003, XX:
   the table says so). FATAL, PANIC, no answer or a time-out leave the outcome in doubt, whatever the SQLSTATE. It is
   settled by reading a row that existed before, under its lock, on the primary. A WARNING comes beside a success.
4. **BEGIN to the last statement**: COMMIT was not sent, so nothing was applied; the table decides whether to try again.

An error that the table does not know is not retried, and no row is marked as failed for it. The table is `RULES`, one
rule for each SQLSTATE or class and circumstance; `decide` reads it and has no rules of its own beside these four.

Safe to re-run: a pure function over a constant table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum

SQLSTATE_CHARACTERS = 5
"""Characters of a SQLSTATE; the first two are its class."""


class Phase(Enum):
    """How far the transaction had come when the error was seen."""

    CONNECTING = "connecting"
    STATEMENT = "before COMMIT"
    COMMIT = "COMMIT sent"
    AFTER = "after COMMIT"


class Verdict(StrEnum):
    """What an error means for the transaction, and for its rows."""

    TRANSIENT = "transient"
    """Nothing was applied; the whole transaction may be tried again."""
    PERMANENT = "permanent"
    """Nothing was applied, and this input will never be; find the row that is to blame."""
    AMBIGUOUS = "in doubt"
    """COMMIT may have succeeded; establish the outcome before anything else."""
    BUG = "bug"
    """Nothing was applied; SQL or code is wrong, or the error is unknown. Stop; no row is to blame."""
    OPERATOR = "operator"
    """Nothing was applied; the environment needs a person. Stop; no row is to blame."""
    REPLAY_CHECK = "replay check"
    """One of pgonce's own keys is taken; read its row and compare the payload: a replay or a conflict."""
    COMMITTED = "committed"
    """The transaction is committed; the error came later."""


class Cure(StrEnum):
    """What helps where an operator is needed."""

    RUN_AGAIN = "run again"
    """Once the environment allows it, the same command goes on."""
    CONFIGURE = "configure"
    """The same command will fail the same way until address, login or rights are corrected."""
    REPAIR = "repair"
    """The server's data are damaged; nothing is to be written until somebody has looked."""


class When(StrEnum):
    """The circumstance a rule is for, where the SQLSTATE alone does not decide."""

    ANY = ""
    OUR_KEY = "on a key of pgonce"
    OTHER_KEY = "on a constraint of the user"
    OUR_LIMIT = "after pgonce's own time-out"
    OTHER_CANCEL = "cancelled by somebody else"
    NO_CONNECTION = "no connection yet"
    LOST = "connection lost"
    ALIVE = "connection alive"
    INTERRUPTED = "interrupted"
    ROLLED_BACK = "COMMIT answered ROLLBACK"
    STANDBY = "on a standby"
    READ_WRITE = "on the primary"
    WARNED = "as a WARNING beside COMMIT's success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One error, as it was seen; no driver types.

    ``severity`` is the server's ERROR, FATAL, PANIC or WARNING, not localised, ``None`` if no server said anything;
    ``constraint`` is qualified by its schema; ``ours`` holds the constraints that are pgonce's keys.
    ``timed_out_by_us`` says that a limit set by pgonce had run out, or that pgonce itself sent the cancel;
    ``standby`` that the server said it was in recovery.
    """

    phase: Phase
    severity: str | None = None
    sqlstate: str | None = None
    constraint: str | None = None
    ours: frozenset[str] = frozenset()
    timed_out_by_us: bool = False
    connection_alive: bool = True
    interrupted: bool = False
    commit_answered_rollback: bool = False
    standby: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the policy.

    ``code`` is a SQLSTATE, a class of two characters, or empty where no server named one. ``before`` holds until COMMIT
    is sent, ``at_commit`` when COMMIT was answered with an ERROR, ``connecting`` while there is no connection.
    ``retries`` bounds the tries of a transient error below the run's own limit (``None``: that limit alone);
    ``asked_retries`` is how often a job that asks for it may retry an error that is otherwise final. ``burns`` says
    whether a try counts as an attempt of this start, ``charged`` whether it then counts against the event's budget over
    all starts as well (a crash does not), ``fresh`` whether the next one needs a new connection. ``cure`` is for what
    an operator has to look after.
    """

    code: str
    name: str
    before: Verdict
    at_commit: Verdict
    remedy: str
    when: When = When.ANY
    retries: int | None = None
    asked_retries: int = 0
    burns: bool = True
    charged: bool = True
    fresh: bool = False
    connecting: Verdict = Verdict.TRANSIENT
    cure: Cure = Cure.RUN_AGAIN


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a failure.

    ``burns_attempt`` says whether the try counts as one of this start's, ``charged`` whether on the event, too.
    ``retries`` is how often more it may be tried for this reason (``None``: as often as the run's limit allows);
    ``asked_retries`` the same for a job that asked to retry what is otherwise final.
    """

    verdict: Verdict
    burns_attempt: bool
    charged: bool
    cure: Cure
    reason: str
    remedy: str
    retries: int | None
    asked_retries: int
    fresh_connection: bool


_T, _P, _A = Verdict.TRANSIENT, Verdict.PERMANENT, Verdict.AMBIGUOUS
_B, _O, _R, _C = Verdict.BUG, Verdict.OPERATOR, Verdict.REPLAY_CHECK, Verdict.COMMITTED
_CONFIGURE = Cure.CONFIGURE

_AGAIN = "It is tried again by itself."
_REPAIR_ROW = "Correct the row, or amend the event; the other rows are applied."
_REPAIR_SQL = "Correct the SQL and run again; nothing was applied."
_OUR_KEY = "A replay or a conflict is seen before it comes to this; pgonce reconcile finds what is wrong."
_DEGRADED = "The commit stands, on this server alone until a standby has it; look after the standbys."
_ASK_ADMIN = "Ask whoever runs the database, then run again; nothing was applied."

RULES: tuple[Rule, ...] = (
    # Where no server named a SQLSTATE.
    Rule("", "no connection", _T, _T, "Tried until the deadline; then check the address, the login and the server.",
         When.NO_CONNECTION, burns=False, fresh=True),
    Rule("", "interrupted", _T, _A, "Nothing was applied by this transaction; run again.", When.INTERRUPTED,
         burns=False),
    Rule("", "rolled back at COMMIT", _B, _B, "A statement failed and its error was swallowed; let it pass through.",
         When.ROLLED_BACK),
    Rule("", "connection lost", _T, _A, _AGAIN, When.LOST, charged=False, fresh=True),
    Rule("", "value not sendable", _P, _A, _REPAIR_ROW, When.ALIVE),
    # Connection exceptions.
    Rule("08", "connection exception", _T, _A, _AGAIN, charged=False, fresh=True),
    Rule("08007", "transaction resolution unknown", _A, _A, "The outcome is read from the position row.", fresh=True),
    Rule("08P01", "ended by a pooler", _T, _A, "The pooler lost the server, or had a limit of its own.",
         When.LOST, charged=False, fresh=True),
    Rule("08P01", "protocol violation", _B, _A, "Check that driver, pooler and server fit together.",
         When.ALIVE, asked_retries=1, fresh=True),
    # What this server cannot do.
    Rule("0A000", "read-write refused at BEGIN", _T, _T, "A standby was reached; the primary is looked for again.",
         When.NO_CONNECTION, burns=False, fresh=True),
    Rule("0A000", "feature not supported", _B, _B, "Correct the SQL; after a change of tables, connect anew.",
         asked_retries=1, fresh=True),
    # The server committed, and has something to say about it.
    Rule("01000", "wait for a synchronous standby cancelled", _C, _C, _DEGRADED, When.WARNED, burns=False),
    # Data, and the user's constraints.
    Rule("22", "data exception", _P, _P, _REPAIR_ROW),
    Rule("23", "integrity constraint violation", _P, _P, _REPAIR_ROW),
    Rule("23503", "foreign key violation", _P, _P, "Apply the row that is referred to first, or correct the reference.",
         asked_retries=1),
    Rule("23505", "unique violation", _R, _R, _OUR_KEY, When.OUR_KEY),
    Rule("23505", "unique violation", _P, _P, _REPAIR_ROW, When.OTHER_KEY),
    Rule("23P01", "exclusion violation", _R, _R, _OUR_KEY, When.OUR_KEY),
    Rule("23P01", "exclusion violation", _P, _P, _REPAIR_ROW, When.OTHER_KEY),
    Rule("44", "with check option violation", _P, _P, _REPAIR_ROW),
    Rule("54", "program limit exceeded", _P, _P, _REPAIR_ROW),
    Rule("P0001", "raise exception", _P, _P, _REPAIR_ROW),
    # Transaction state.
    Rule("25000", "invalid transaction state", _B, _B, "Take transaction control out of the effect's SQL."),
    Rule("25001", "active SQL transaction", _B, _B, "Take BEGIN out of the effect's SQL."),
    Rule("25P01", "no active SQL transaction", _B, _B, "Take COMMIT and ROLLBACK out of the effect's SQL."),
    Rule("2D000", "invalid transaction termination", _B, _B, "Do not call a procedure that commits from the effect."),
    Rule("25006", "read-only transaction", _T, _T, "A standby was reached; the primary is looked for again.",
         When.STANDBY, burns=False, fresh=True),
    Rule("25006", "read-only transaction", _B, _B, "Take what makes the transaction read-only out of the effect.",
         When.READ_WRITE),
    Rule("25P02", "failed transaction", _B, _B, "An earlier error was swallowed; let the first one pass through."),
    Rule("25P03", "idle in transaction time-out", _T, _A, "If it comes again: use smaller chunks, or raise the limit.",
         retries=1, fresh=True),
    Rule("25P04", "transaction time-out", _T, _A, "Use smaller chunks, or raise transaction_timeout.",
         retries=1, fresh=True),
    # Login and configuration.
    Rule("28", "invalid authorization", _O, _O, _ASK_ADMIN, burns=False, connecting=_O, cure=_CONFIGURE),
    Rule("3D000", "database does not exist", _O, _O, "Check the database's name.", burns=False, connecting=_O,
         cure=_CONFIGURE),
    Rule("3F000", "schema does not exist", _O, _O, "Check the schema's name; pgonce db init makes pgonce's own.",
         burns=False, connecting=_O, cure=_CONFIGURE),
    Rule("F0", "configuration file error", _O, _O, _ASK_ADMIN, burns=False, connecting=_O, cure=_CONFIGURE),
    # Other transactions.
    Rule("40000", "transaction rollback", _T, _T, _AGAIN),
    Rule("40001", "serialization failure", _T, _T, _AGAIN),
    Rule("40002", "transaction integrity violation", _T, _T, _AGAIN),
    Rule("40003", "statement completion unknown", _A, _A, "The outcome is read from the position row.", fresh=True),
    Rule("40P01", "deadlock detected", _T, _T, "It is tried again; if it comes often, lock rows in one order."),
    Rule("55P03", "lock not available", _T, _T, "Somebody else works on these rows; it is tried again.", burns=False),
    Rule("72000", "snapshot too old", _T, _T, _AGAIN),
    # SQL.
    Rule("26000", "prepared statement missing", _B, _B, "Behind a pooler, turn prepared statements off.",
         asked_retries=1, fresh=True),
    Rule("42", "syntax error or access rule violation", _B, _B, _REPAIR_SQL),
    Rule("42501", "insufficient privilege", _O, _O, "Grant the role what it needs, then run again.",
         burns=False, connecting=_O, cure=_CONFIGURE),
    Rule("42P05", "prepared statement exists", _B, _B, "Behind a pooler, turn prepared statements off.",
         asked_retries=1, fresh=True),
    # Resources.
    Rule("53", "insufficient resources", _O, _O, _ASK_ADMIN, burns=False),
    Rule("53100", "disk full", _O, _T, "Make room on the server's disk, then run again.", burns=False),
    Rule("53300", "too many connections", _O, _O, "Use fewer workers or raise max_connections.", burns=False),
    Rule("53400", "configuration limit exceeded", _O, _O, "Use smaller chunks, or raise the limit named.",
         burns=False),
    # People and shutdowns.
    Rule("57014", "query cancelled", _T, _T, _AGAIN, When.OUR_LIMIT),
    Rule("57014", "query cancelled", _O, _T, "Somebody cancelled it; find out why, then run again.", When.OTHER_CANCEL,
         burns=False),
    Rule("57P01", "wait for a synchronous standby ended", _C, _C, _DEGRADED, When.WARNED, burns=False, fresh=True),
    Rule("57P01", "admin shutdown", _T, _A, _AGAIN, charged=False, fresh=True),
    Rule("57P02", "crash shutdown", _T, _A, _AGAIN, charged=False, fresh=True),
    Rule("57P03", "cannot connect now", _T, _A, "The server starts or recovers; it is tried until the deadline.",
         burns=False, fresh=True),
    Rule("57P04", "database dropped", _O, _A, "The database is gone; check the address.", burns=False, fresh=True,
         connecting=_O, cure=_CONFIGURE),
    Rule("57P05", "idle session time-out", _T, _A, _AGAIN, burns=False, fresh=True),
    # The server itself.
    Rule("58", "system error", _O, _O, "Check the server's disks and log before running again.", burns=False),
    # A shard's node that is lost inside COMMIT is told by an ERROR of this class: in doubt, so the row is read.
    Rule("XX000", "internal error", _B, _A, "Keep the message and the server's log; report it.", asked_retries=1),
    Rule("XX001", "data corrupted", _O, _A, "Stop writing to this server and restore or repair it.", burns=False,
         cure=Cure.REPAIR),
    Rule("XX002", "index corrupted", _O, _A, "Stop writing to this server and rebuild the index.", burns=False,
         cure=Cure.REPAIR),
)  # fmt: skip
"""The policy, ordered by class. The more exact code wins: ``42501`` before ``42``."""

DAMAGED = frozenset(rule.code for rule in RULES if rule.cure is Cure.REPAIR)
"""The SQLSTATEs after which nothing is to be written to the server any more."""

UNKNOWN = Rule(
    "", "unknown error", _B, _B, "pgonce does not know it. --retry-on has it tried again; P0001 refuses a row."
)
"""What holds for an error that no rule names."""


def _by_code() -> dict[str, tuple[Rule, ...]]:
    return {code: tuple(rule for rule in RULES if rule.code == code) for code in {rule.code for rule in RULES}}


_RULES_BY_CODE = _by_code()

_HOLDS: dict[When, Callable[[Failure], bool]] = {
    When.ANY: lambda failure: True,
    When.OUR_KEY: lambda failure: failure.constraint in failure.ours,
    When.OTHER_KEY: lambda failure: failure.constraint not in failure.ours,
    When.OUR_LIMIT: lambda failure: failure.timed_out_by_us,
    When.OTHER_CANCEL: lambda failure: not failure.timed_out_by_us,
    When.NO_CONNECTION: lambda failure: failure.phase is Phase.CONNECTING,
    When.INTERRUPTED: lambda failure: failure.interrupted,
    When.ROLLED_BACK: lambda failure: failure.commit_answered_rollback,
    When.LOST: lambda failure: not failure.connection_alive,
    When.ALIVE: lambda failure: failure.connection_alive,
    When.STANDBY: lambda failure: failure.standby,
    When.READ_WRITE: lambda failure: not failure.standby,
    When.WARNED: lambda failure: failure.phase is Phase.COMMIT and failure.severity == "WARNING",
}


_PHASES: dict[When, tuple[Phase, ...]] = {
    When.NO_CONNECTION: (Phase.CONNECTING,),
    When.INTERRUPTED: (Phase.STATEMENT, Phase.COMMIT),
    When.ROLLED_BACK: (Phase.COMMIT,),
    When.LOST: (Phase.STATEMENT, Phase.COMMIT),
    When.ALIVE: (Phase.STATEMENT, Phase.COMMIT),
    When.WARNED: (Phase.COMMIT,),
    When.OUR_KEY: (Phase.STATEMENT, Phase.COMMIT),
    When.OTHER_KEY: (Phase.STATEMENT, Phase.COMMIT),
}
"""Circumstances that exist in some of the phases only."""


def verdict_of(rule: Rule, phase: Phase) -> Verdict | None:
    """Return the verdict of a rule while connecting, before COMMIT or at a COMMIT that was answered with an ERROR.

    None where the rule cannot be the one that holds. ``AFTER`` needs no rule: the commit stands.
    """
    stood_in = rule.when is When.ANY and rule is not UNKNOWN and _stands_in(rule.code)
    if (stood_in and phase is Phase.CONNECTING) or phase not in _PHASES.get(rule.when, tuple(Phase)):
        return None
    return {Phase.CONNECTING: rule.connecting, Phase.STATEMENT: rule.before, Phase.COMMIT: rule.at_commit}.get(phase)


def _stands_in(code: str) -> bool:
    """Say whether a rule of its own holds for a code as long as there is no connection."""
    return any(rule.when is When.NO_CONNECTION for rule in rules_of(code))


def rules_of(code: str) -> tuple[Rule, ...]:
    """List the rules among which one of a SQLSTATE is chosen: those of the code itself, else those of its class."""
    return _RULES_BY_CODE.get(code) or _RULES_BY_CODE.get(code[:2], ())


def rule_for(failure: Failure) -> Rule:
    """Find the rule of a failure: by its SQLSTATE, else its class, else its circumstance; UNKNOWN if there is none."""
    return next((rule for rule in rules_of(failure.sqlstate or "") if _HOLDS[rule.when](failure)), UNKNOWN)


def decide(failure: Failure) -> Decision:
    """Decide what a failure means and whether its transaction may be tried again.

    Never raises: an unknown error is a decision too (not retried).
    """
    rule = rule_for(failure)
    if failure.phase is Phase.AFTER:
        return _decision(rule, failure, Verdict.COMMITTED, "The commit stands; look at the error when there is time.")
    if failure.phase is Phase.CONNECTING:
        return _decision(rule, failure, rule.connecting, rule.remedy)
    if failure.phase is Phase.STATEMENT:
        return _decision(rule, failure, rule.before, rule.remedy)
    if failure.severity == "ERROR" or failure.commit_answered_rollback or rule.when is When.WARNED:
        return _decision(rule, failure, rule.at_commit, rule.remedy)
    return _decision(rule, failure, Verdict.AMBIGUOUS, "The outcome is read from the position row, under its lock.")


_ENDED_BY = frozenset({Phase.CONNECTING, Phase.COMMIT})
"""Where a failure leaves no connection to go on with: there is none yet, or nobody should meet it after that COMMIT."""


def _decision(rule: Rule, failure: Failure, verdict: Verdict, remedy: str) -> Decision:
    retries = rule.retries if verdict is Verdict.TRANSIENT else 0
    began = failure.phase is not Phase.CONNECTING
    in_doubt = verdict is Verdict.AMBIGUOUS
    burns = began and rule.burns and verdict is not Verdict.COMMITTED
    return Decision(
        verdict=verdict,
        burns_attempt=burns,
        charged=burns and (rule.charged or _is_raised(failure)),
        cure=rule.cure,
        reason=_reason(rule, failure),
        remedy=remedy,
        retries=retries,
        asked_retries=0 if in_doubt or verdict is Verdict.COMMITTED else rule.asked_retries,
        fresh_connection=rule.fresh or in_doubt or not failure.connection_alive or failure.phase in _ENDED_BY,
    )


def _is_raised(failure: Failure) -> bool:
    """Say whether a code that tells of a crash was only raised, by a function in a session that lives on."""
    return failure.severity == "ERROR" and failure.connection_alive


def _reason(rule: Rule, failure: Failure) -> str:
    code = f" ({failure.sqlstate})" if failure.sqlstate else ""
    constraint = f", constraint {failure.constraint}" if failure.constraint else ""
    circumstance = f", {rule.when}" if failure.sqlstate and rule.when else ""
    return f"{rule.name}{code}{constraint}{circumstance}; {_PHASE_WORDS[failure.phase]}"


_PHASE_WORDS = {
    Phase.CONNECTING: "no connection was made",
    Phase.STATEMENT: "COMMIT was not sent",
    Phase.COMMIT: "COMMIT was sent",
    Phase.AFTER: "COMMIT had succeeded",
}
