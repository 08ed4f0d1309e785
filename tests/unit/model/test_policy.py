"""The whole failure policy, row by row, and the four rules that stand above its table."""

from __future__ import annotations

import re

import psycopg.errors
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.model.policy import RULES, UNKNOWN, Decision, Failure, Phase, Verdict, When, decide, rule_for

T, P, A, B, O, R = (  # noqa: E741
    Verdict.TRANSIENT,
    Verdict.PERMANENT,
    Verdict.AMBIGUOUS,
    Verdict.BUG,
    Verdict.OPERATOR,
    Verdict.REPLAY_CHECK,
)
OURS = frozenset({"pgonce.event_pkey", "pgonce.effect_pkey"})

# SQLSTATE, verdict before COMMIT is sent, verdict when COMMIT is answered with an ERROR,
# whether a try counts as an attempt, retries of its own (None: the run's limit), retries only if asked for.
ROWS = [
    ("40001", T, T, True, None, 0),
    ("40P01", T, T, True, None, 0),
    ("40002", T, T, True, None, 0),
    ("40000", T, T, True, None, 0),
    ("40003", A, A, True, 0, 0),
    ("08007", A, A, True, 0, 0),
    ("08000", T, A, True, None, 0),
    ("08003", T, A, True, None, 0),
    ("08006", T, A, True, None, 0),
    ("08001", T, A, True, None, 0),
    ("08004", T, A, True, None, 0),
    ("08P01", B, A, True, 0, 1),
    ("55P03", T, T, False, None, 0),
    ("57P01", T, A, True, None, 0),
    ("57P02", T, A, True, None, 0),
    ("57P03", T, A, False, None, 0),
    ("57P04", O, A, False, 0, 0),
    ("57P05", T, A, False, None, 0),
    ("53100", O, T, False, 0, 0),
    ("53200", O, O, False, 0, 0),
    ("53300", O, O, False, 0, 0),
    ("53000", O, O, False, 0, 0),
    ("53400", O, O, False, 0, 0),
    ("54000", P, P, True, 0, 0),
    ("54001", P, P, True, 0, 0),
    ("25006", B, B, True, 0, 0),
    ("25P02", B, B, True, 0, 0),
    ("25P03", T, A, True, 1, 0),
    ("25P04", T, A, True, 1, 0),
    ("25001", B, B, True, 0, 0),
    ("25P01", B, B, True, 0, 0),
    ("2D000", B, B, True, 0, 0),
    ("25000", B, B, True, 0, 0),
    ("23503", P, P, True, 0, 1),
    ("23514", P, P, True, 0, 0),
    ("23502", P, P, True, 0, 0),
    ("23001", P, P, True, 0, 0),
    ("44000", P, P, True, 0, 0),
    ("22003", P, P, True, 0, 0),
    ("22P02", P, P, True, 0, 0),
    ("22P05", P, P, True, 0, 0),
    ("22012", P, P, True, 0, 0),
    ("22000", P, P, True, 0, 0),
    ("42601", B, B, True, 0, 0),
    ("42703", B, B, True, 0, 0),
    ("42P01", B, B, True, 0, 0),
    ("42501", O, O, False, 0, 0),
    ("42P05", B, B, True, 0, 1),
    ("26000", B, B, True, 0, 1),
    ("0A000", B, B, True, 0, 1),
    ("P0001", P, P, True, 0, 0),
    ("XX000", B, A, True, 0, 1),
    ("XX001", O, A, False, 0, 0),
    ("XX002", O, A, False, 0, 0),
    ("58030", O, O, False, 0, 0),
    ("58000", O, O, False, 0, 0),
    ("58P01", O, O, False, 0, 0),
    ("58P02", O, O, False, 0, 0),
    ("F0000", O, O, False, 0, 0),
    ("F0001", O, O, False, 0, 0),
    ("28P01", O, O, False, 0, 0),
    ("28000", O, O, False, 0, 0),
    ("3D000", O, O, False, 0, 0),
    ("3F000", O, O, False, 0, 0),
    ("72000", T, T, True, None, 0),
]


def fail(phase: Phase, severity: str | None = "ERROR", sqlstate: str | None = None, **more: object) -> Decision:
    return decide(Failure(phase=phase, severity=severity, sqlstate=sqlstate, **more))


@pytest.mark.parametrize(("sqlstate", "before", "at_commit", "burns", "retries", "asked"), ROWS)
def test_every_row_of_the_policy(
    sqlstate: str, before: Verdict, at_commit: Verdict, burns: bool, retries: int | None, asked: int
) -> None:
    statement = fail(Phase.STATEMENT, sqlstate=sqlstate)
    assert (statement.verdict, statement.burns_attempt, statement.retries) == (before, burns, retries)
    assert statement.asked_retries == asked
    commit = fail(Phase.COMMIT, sqlstate=sqlstate)
    assert commit.verdict is at_commit
    for severity in ("FATAL", "PANIC", None):
        assert fail(Phase.COMMIT, severity, sqlstate).verdict is A
    for decision in (statement, commit):
        assert f"({sqlstate})" in decision.reason
        assert decision.remedy.endswith(".")


@pytest.mark.parametrize("sqlstate", ["23505", "23P01"])
@pytest.mark.parametrize("phase", [Phase.STATEMENT, Phase.COMMIT])
def test_a_unique_violation_is_decided_by_its_constraint(sqlstate: str, phase: Phase) -> None:
    ours = fail(phase, sqlstate=sqlstate, constraint="pgonce.effect_pkey", ours=OURS)
    assert (ours.verdict, ours.retries) == (R, 0)
    assert "pgonce.effect_pkey" in ours.reason
    assert fail(phase, sqlstate=sqlstate, constraint="public.effect_pkey", ours=OURS).verdict is P
    assert fail(phase, sqlstate=sqlstate, ours=OURS).verdict is P
    assert fail(phase, sqlstate="23514", constraint="pgonce.effect_pkey", ours=OURS).verdict is P


def test_a_cancel_is_retried_only_after_our_own_time_out() -> None:
    ours = fail(Phase.STATEMENT, sqlstate="57014", timed_out_by_us=True)
    assert (ours.verdict, ours.burns_attempt) == (T, True)
    human = fail(Phase.STATEMENT, sqlstate="57014")
    assert (human.verdict, human.burns_attempt, human.retries) == (O, False, 0)
    assert fail(Phase.COMMIT, sqlstate="57014").verdict is T
    assert fail(Phase.COMMIT, None, "57014").verdict is A


def test_without_a_connection_nothing_was_sent_and_no_attempt_is_used_up() -> None:
    for sqlstate in (None, "53300", "57P03", "08006", "57P01", "ZZ999"):
        decision = fail(Phase.CONNECTING, "FATAL", sqlstate, connection_alive=False)
        assert (decision.verdict, decision.burns_attempt, decision.fresh_connection) == (T, False, True)
        assert decision.retries is None


@pytest.mark.parametrize("sqlstate", ["28P01", "28000", "3D000", "42501", "F0000", "57P04"])
def test_a_server_that_refuses_us_by_name_is_not_asked_again(sqlstate: str) -> None:
    decision = fail(Phase.CONNECTING, "FATAL", sqlstate, connection_alive=False)
    assert (decision.verdict, decision.burns_attempt, decision.retries) == (O, False, 0)


def test_a_cut_before_commit_is_retried_on_a_new_connection_and_after_it_is_in_doubt() -> None:
    before = fail(Phase.STATEMENT, None, None, connection_alive=False)
    assert (before.verdict, before.burns_attempt, before.fresh_connection) == (T, True, True)
    after = fail(Phase.COMMIT, None, None, connection_alive=False)
    assert (after.verdict, after.retries, after.fresh_connection) == (A, 0, True)
    assert "under its lock" in after.remedy


def test_a_value_that_the_driver_cannot_send_blames_the_row() -> None:
    decision = fail(Phase.STATEMENT, None, None)
    assert (decision.verdict, decision.retries, decision.fresh_connection) == (P, 0, False)


def test_an_interrupt_loses_nothing_before_commit_and_is_in_doubt_at_commit() -> None:
    before = fail(Phase.STATEMENT, None, None, interrupted=True)
    assert (before.verdict, before.burns_attempt) == (T, False)
    assert fail(Phase.COMMIT, None, None, interrupted=True).verdict is A


def test_a_commit_that_was_answered_with_rollback_is_a_bug_and_not_in_doubt() -> None:
    decision = fail(Phase.COMMIT, None, None, commit_answered_rollback=True)
    assert (decision.verdict, decision.retries) == (B, 0)
    assert "swallowed" in decision.remedy


def test_a_broken_connection_is_never_used_again() -> None:
    assert fail(Phase.STATEMENT, sqlstate="40001", connection_alive=False).fresh_connection
    assert not fail(Phase.STATEMENT, sqlstate="40001").fresh_connection
    assert fail(Phase.STATEMENT, sqlstate="25006", standby=True).fresh_connection
    for sqlstate in ("26000", "42P05", "0A000"):
        assert fail(Phase.STATEMENT, sqlstate=sqlstate).fresh_connection


def test_a_standby_is_waited_for_and_a_transaction_made_read_only_is_a_bug() -> None:
    standby = fail(Phase.STATEMENT, sqlstate="25006", standby=True)
    assert (standby.verdict, standby.burns_attempt, standby.retries) == (T, False, None)
    at_begin = fail(Phase.CONNECTING, sqlstate="0A000")
    assert (at_begin.verdict, at_begin.burns_attempt, at_begin.fresh_connection) == (T, False, True)
    assert fail(Phase.STATEMENT, sqlstate="25006").verdict is B


@pytest.mark.parametrize("sqlstate", ["01000", "57P01"])
def test_a_cancelled_wait_for_a_standby_is_a_commit_all_the_same(sqlstate: str) -> None:
    decision = fail(Phase.COMMIT, "WARNING", sqlstate)
    assert (decision.verdict, decision.burns_attempt, decision.retries) == (Verdict.COMMITTED, False, 0)
    assert "standby" in decision.remedy
    assert fail(Phase.COMMIT, "WARNING", "01004").verdict is A


failures = st.builds(
    Failure,
    phase=st.sampled_from(Phase),
    severity=st.sampled_from(["ERROR", "FATAL", "PANIC", None, "FEHLER"]),
    sqlstate=st.none() | st.sampled_from([row[0] for row in ROWS]) | st.from_regex(r"[0-9A-Z]{5}", fullmatch=True),
    constraint=st.sampled_from([None, "pgonce.event_pkey", "public.x"]),
    ours=st.just(OURS),
    timed_out_by_us=st.booleans(),
    connection_alive=st.booleans(),
    interrupted=st.booleans(),
)


@settings(deadline=None)
@given(failures)
def test_the_four_rules_stand_above_the_table(failure: Failure) -> None:
    decision = decide(failure)
    if failure.phase is Phase.AFTER:
        assert (decision.verdict, decision.burns_attempt, decision.retries) == (Verdict.COMMITTED, False, 0)
        return
    assert decision.verdict is not Verdict.COMMITTED
    if failure.phase is Phase.CONNECTING:
        assert decision.verdict in {T, O}
        assert not decision.burns_attempt
    if failure.phase is Phase.COMMIT and failure.severity != "ERROR":
        assert decision.verdict is A
    if decision.verdict is A:
        assert decision.retries == decision.asked_retries == 0
        assert decision.fresh_connection
    if decision.verdict is not T:
        assert decision.retries == 0


TRANSIENT_BEFORE_COMMIT = {row[0] for row in ROWS if row[1] is T}


@pytest.mark.parametrize(
    "sqlstate",
    sorted({c.sqlstate for c in vars(psycopg.errors).values() if isinstance(getattr(c, "sqlstate", None), str)}),
)
def test_of_all_codes_the_driver_knows_only_the_listed_ones_are_retried(sqlstate: str) -> None:
    decision = fail(Phase.STATEMENT, sqlstate=sqlstate)
    assert (decision.verdict is T) == (sqlstate in TRANSIENT_BEFORE_COMMIT)
    if sqlstate[:2] in {"23", "22", "42", "44", "54"}:
        assert decision.verdict in {P, B, O}


@pytest.mark.parametrize("sqlstate", ["ZZ999", "21000", "25002", "57000", "XX003", "U0001", "P0002", "4", "?"])
def test_an_unknown_error_is_not_retried_and_no_row_is_to_blame(sqlstate: str) -> None:
    assert rule_for(Failure(phase=Phase.STATEMENT, severity="ERROR", sqlstate=sqlstate)) is UNKNOWN
    for phase in (Phase.STATEMENT, Phase.COMMIT):
        decision = fail(phase, sqlstate=sqlstate)
        assert (decision.verdict, decision.retries, decision.asked_retries) == (B, 0, 0)
        assert "unknown error" in decision.reason


def test_the_table_is_well_formed() -> None:
    assert len({(rule.code, rule.when) for rule in RULES}) == len(RULES)
    for rule in (*RULES, UNKNOWN):
        assert re.fullmatch(r"|[0-9A-Z]{2}|[0-9A-Z]{5}", rule.code)
        assert rule.name
        assert rule.remedy.endswith(".")
        assert rule.connecting in {T, O}
        assert rule.retries is None or T in {rule.before, rule.at_commit}
        assert rule.asked_retries == 0 or T not in {rule.before, rule.at_commit}
        assert (rule.code == "") <= (rule.when is not When.ANY or rule is UNKNOWN)
