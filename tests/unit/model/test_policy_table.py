"""Every rule of the policy in every phase at every severity, beside a second copy of the table written by hand.

What the table says, FAILURES 2.3, is written down here once more; what stands above it, FAILURES 2.1, is the function
``expected``. A rule that no case reaches fails the last test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from pgonce.model.policy import RULES, UNKNOWN, Cure, Failure, Phase, Rule, Verdict, When, decide, rule_for, verdict_of

T, P, A, B, O, R, C = (  # noqa: E741
    Verdict.TRANSIENT,
    Verdict.PERMANENT,
    Verdict.AMBIGUOUS,
    Verdict.BUG,
    Verdict.OPERATOR,
    Verdict.REPLAY_CHECK,
    Verdict.COMMITTED,
)
SEVERITIES = (None, "ERROR", "FATAL", "PANIC")

OUR_KEY = {"constraint": "pgonce.effect_pkey", "ours": frozenset({"pgonce.effect_pkey"})}
OTHER_KEY = {"constraint": "public.account_pkey", "ours": frozenset({"pgonce.effect_pkey"})}


@dataclass(frozen=True, slots=True)
class Case:
    """A SQLSTATE, or none, in a circumstance: the rule it is for, and what that says, phase by phase.

    ``connecting``, ``before`` and ``at_commit`` (answered with an ERROR) are None where another rule holds.
    """

    sqlstate: str | None
    rule: tuple[str, When]
    connecting: Verdict | None
    before: Verdict | None
    at_commit: Verdict | None
    burns: bool
    seen: tuple[tuple[str, object], ...] = ()

    def failure(self, phase: Phase, severity: str | None) -> Failure:
        return replace(Failure(phase=phase, severity=severity, sqlstate=self.sqlstate), **dict(self.seen))


def case(
    sqlstate: str | None,
    verdicts: tuple[Verdict | None, Verdict | None, Verdict | None],
    *,
    code: str | None = None,
    when: When = When.ANY,
    burns: bool = True,
    **seen: object,
) -> Case:
    name = (sqlstate or "") if code is None else code
    return Case(sqlstate, (name, when), *verdicts, burns, tuple(seen.items()))


CASES = [
    # No SQLSTATE.
    case(None, (T, None, None), when=When.NO_CONNECTION, burns=False, connection_alive=False),
    case(None, (None, T, A), when=When.INTERRUPTED, burns=False, interrupted=True),
    case(None, (None, None, B), when=When.ROLLED_BACK, commit_answered_rollback=True),
    case(None, (None, T, A), when=When.LOST, connection_alive=False),
    case(None, (None, P, A), when=When.ALIVE),
    # The connection.
    *(case(code, (T, T, A), code="08") for code in ("08000", "08003", "08006", "08001", "08004")),
    case("08007", (T, A, A)),
    case("08P01", (None, T, A), when=When.LOST, connection_alive=False),
    case("08P01", (None, B, A), when=When.ALIVE),
    # What is not supported; a standby refuses BEGIN READ WRITE so.
    case("0A000", (T, None, None), when=When.NO_CONNECTION, burns=False),
    case("0A000", (None, B, B)),
    # Data and constraints.
    *(case(code, (T, P, P), code="22") for code in ("22000", "22003", "22P02", "22P05", "22012")),
    *(case(code, (T, P, P), code="23") for code in ("23514", "23502", "23001")),
    case("23503", (T, P, P)),
    *(case(code, (None, R, R), when=When.OUR_KEY, **OUR_KEY) for code in ("23505", "23P01")),
    *(case(code, (None, P, P), when=When.OTHER_KEY, **OTHER_KEY) for code in ("23505", "23P01")),
    case("44000", (T, P, P), code="44"),
    *(case(code, (T, P, P), code="54") for code in ("54000", "54001")),
    case("P0001", (T, P, P)),
    # The state of the transaction.
    *(case(code, (T, B, B)) for code in ("25000", "25001", "25P01", "2D000", "25P02")),
    case("25006", (T, T, T), when=When.STANDBY, burns=False, standby=True),
    case("25006", (T, B, B), when=When.READ_WRITE),
    *(case(code, (T, T, A)) for code in ("25P03", "25P04")),
    # Login and configuration.
    *(case(code, (O, O, O), code="28", burns=False) for code in ("28000", "28P01")),
    *(case(code, (O, O, O), burns=False) for code in ("3D000", "3F000", "42501")),
    *(case(code, (O, O, O), code="F0", burns=False) for code in ("F0000", "F0001")),
    # Other transactions.
    *(case(code, (T, T, T)) for code in ("40000", "40001", "40002", "40P01", "72000")),
    case("40003", (T, A, A)),
    case("55P03", (T, T, T), burns=False),
    # SQL.
    *(case(code, (T, B, B)) for code in ("26000", "42P05")),
    *(case(code, (T, B, B), code="42") for code in ("42601", "42703", "42P01")),
    # Resources.
    *(case(code, (T, O, O), code="53", burns=False) for code in ("53000", "53200")),
    case("53100", (T, O, T), burns=False),
    *(case(code, (T, O, O), burns=False) for code in ("53300", "53400")),
    # People and shutdowns.
    case("57014", (T, T, T), when=When.OUR_LIMIT, timed_out_by_us=True),
    case("57014", (T, O, T), when=When.OTHER_CANCEL, burns=False),
    *(case(code, (T, T, A)) for code in ("57P01", "57P02")),
    *(case(code, (T, T, A), burns=False) for code in ("57P03", "57P05")),
    case("57P04", (O, O, A), burns=False),
    # The server itself.
    *(case(code, (T, O, O), code="58", burns=False) for code in ("58000", "58030", "58P01", "58P02")),
    case("XX000", (T, B, A)),
    *(case(code, (T, O, A), burns=False) for code in ("XX001", "XX002")),
    # What no rule names.
    *(case(code, (T, B, B), code="") for code in ("21000", "ZZ999", "01004", "01000")),
]

CURES = {
    **dict.fromkeys(("28000", "28P01", "3D000", "3F000", "F0000", "F0001", "42501", "57P04"), Cure.CONFIGURE),
    **dict.fromkeys(("XX001", "XX002"), Cure.REPAIR),
}

# A WARNING is no error: it comes beside COMMIT's success, and only these two mean something.
WARNINGS = [case(code, (None, None, C), when=When.WARNED, burns=False) for code in ("01000", "57P01")]


def named(name: tuple[str, When]) -> Rule:
    return next((rule for rule in RULES if (rule.code, rule.when) == name), UNKNOWN)


def expected(case: Case, phase: Phase, severity: str | None) -> Verdict | None:
    """FAILURES 2.1: the phase first, then the severity, and only then the table."""
    match phase:
        case Phase.AFTER:
            return C
        case Phase.CONNECTING:
            return case.connecting
        case Phase.STATEMENT:
            return case.before
    if case.at_commit is None or severity == "ERROR" or case.rule[1] is When.ROLLED_BACK:
        return case.at_commit
    return A


def points() -> Iterator[tuple[Case, Phase, str | None]]:
    yield from itertools.product(CASES, Phase, SEVERITIES)
    yield from itertools.product(WARNINGS, [Phase.COMMIT], ["WARNING"])


def reached() -> set[tuple[str, When]]:
    rules = [rule_for(case.failure(phase, severity)) for case, phase, severity in points()]
    return {(rule.code, rule.when) for rule in rules if rule is not UNKNOWN}


@pytest.mark.parametrize("one", CASES, ids=lambda one: f"{one.sqlstate} {one.rule[1]}".strip())
def test_a_rule_in_every_phase_at_every_severity(one: Case) -> None:
    """The verdict is the table's; a try that began burns as the rule says; doubt and success never retry."""
    for phase, severity in itertools.product(Phase, SEVERITIES):
        verdict = expected(one, phase, severity)
        if verdict is None:
            continue
        failure = one.failure(phase, severity)
        decision = decide(failure)
        where = f"{one.sqlstate} {phase} {severity}"
        assert decision.verdict is verdict, where
        assert phase is Phase.AFTER or rule_for(failure) is named(one.rule), where
        began = phase in (Phase.STATEMENT, Phase.COMMIT)
        assert decision.burns_attempt is (began and one.burns), where
        crash = one.sqlstate in ("57P01", "57P02") or one.rule[0] == "08" or one.rule[1] is When.LOST
        raised = severity == "ERROR" and failure.connection_alive
        assert decision.charged is (decision.burns_attempt and (not crash or raised)), where
        assert decision.cure is CURES.get(one.sqlstate or "", Cure.RUN_AGAIN), where
        assert verdict is T or decision.retries == 0, where
        assert decision.fresh_connection or (phase is not Phase.CONNECTING and verdict is not A), where


@pytest.mark.parametrize("one", WARNINGS, ids=lambda one: one.sqlstate)
def test_a_warning_beside_commit(one: Case) -> None:
    """COMMIT took place; an error of the same code is something else."""
    failure = one.failure(Phase.COMMIT, "WARNING")
    assert rule_for(failure) is named(one.rule)
    assert decide(failure).verdict is C
    assert rule_for(one.failure(Phase.COMMIT, "ERROR")).when is not When.WARNED
    assert rule_for(one.failure(Phase.STATEMENT, "WARNING")).when is not When.WARNED


@pytest.mark.parametrize("one", [*CASES, *WARNINGS], ids=lambda one: f"{one.sqlstate} {one.rule[1]}".strip())
def test_what_is_printed_of_a_rule_is_what_is_decided(one: Case) -> None:
    """``verdict_of``, which the command and the page print, knows where a rule holds and where another one does."""
    rule = named(one.rule)
    printed = tuple(verdict_of(rule, phase) for phase in (Phase.CONNECTING, Phase.STATEMENT, Phase.COMMIT))
    assert printed == (one.connecting, one.before, one.at_commit)
    assert verdict_of(rule, Phase.AFTER) is None


def test_every_rule_is_reached_by_a_case() -> None:
    assert reached() == {(rule.code, rule.when) for rule in RULES}
