"""Which errors a job may have tried again, how often, and that nothing in doubt is among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError
from pgonce.model.backoff import CAP_S, Backoff, read_backoff
from pgonce.model.limits import Limits
from pgonce.model.override import FINAL, Overrides, read_overrides
from pgonce.model.policy import RULES, Failure, Phase, Verdict, decide

OURS = frozenset({"pgonce.event_pkey", "pgonce.effect_pkey"})


def test_codes_are_read_with_and_without_a_number() -> None:
    assert read_overrides(["23503", "BUSY1=4", "public.payment_fkey=2"]) == {
        "23503": 1,
        "BUSY1": 4,
        "public.payment_fkey": 2,
    }


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["23503="], "write CODE, or CODE=N"),
        (["23503=x"], "write CODE, or CODE=N"),
        (["23503=-1"], "write CODE, or CODE=N"),
        (["23503=²"], "write CODE, or CODE=N"),
        (["23503", "23503=2"], "names 23503 twice"),
    ],
)
def test_what_cannot_be_read_is_refused(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_overrides(texts)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "write the SQLSTATE"),
        ("2350", "write the SQLSTATE"),
        ("235033", "write the SQLSTATE"),
        ("busy1", "write the SQLSTATE"),
        ("payment_fkey", "or a constraint with its schema"),
        (".payment_fkey", "or a constraint with its schema"),
        ("public.", "or a constraint with its schema"),
        ("00000", "write the SQLSTATE"),
        ("40001", "serialization failure is tried again without being asked; --attempts says how often"),
        ("55P03", "lock not available is tried again without being asked"),
        ("40003", "is in doubt; its outcome is established"),
        ("08007", "is in doubt; its outcome is established"),
        ("22012", "data exception is not cured by trying again"),
        ("42P01", "is not cured by trying again. Correct the SQL"),
        ("53100", "disk full is not cured by trying again. Make room"),
        ("XX001", "data corrupted is not cured"),
        ("25P02", "failed transaction is not cured"),
        ("57014", "query cancelled is not cured"),
    ],
)
def test_what_cannot_be_overridden_is_refused_with_the_reason(code: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Limits(retry_on={code: 1})


@pytest.mark.parametrize("times", [0, -1, 1001])
def test_a_number_of_tries_has_its_limits(times: int) -> None:
    with pytest.raises(ConfigurationError, match=f"--retry-on 23503={times}: the number of tries is from 1 to 1000"):
        Limits(retry_on={"23503": times})


@pytest.mark.parametrize(
    "code", ["23503", "23514", "23505", "23P01", "P0001", "BUSY1", "45000", "P0002", "XX000", "0A000"]
)
def test_what_the_table_allows_and_what_is_the_users_own_can_be_asked_for(code: str) -> None:
    assert Limits(retry_on={code: 3}).retry_on == {code: 3}
    asked = Overrides.of({code: 3})
    decision = decide(Failure(phase=Phase.STATEMENT, severity="ERROR", sqlstate=code))
    taken = [asked.take(decision, sqlstate=code, constraint=None) for _ in range(5)]
    assert taken == [True, True, True, False, False]


def test_a_constraint_is_asked_for_with_its_schema_and_no_other_one_is_meant() -> None:
    asked = Overrides.of({"public.payment_fkey": 1})
    decision = decide(Failure(phase=Phase.STATEMENT, severity="ERROR", sqlstate="23503"))
    for constraint in (None, "payment_fkey", "other.payment_fkey", "public.payment_fkey2"):
        assert not asked.take(decision, sqlstate="23503", constraint=constraint)
    assert asked.take(decision, sqlstate="23503", constraint="public.payment_fkey")
    assert not asked.take(decision, sqlstate="23503", constraint="public.payment_fkey")


def test_a_key_of_pgonce_is_never_tried_again() -> None:
    asked = Overrides.of({"23505": 9, "pgonce.effect_pkey": 9})
    decision = decide(
        Failure(phase=Phase.STATEMENT, severity="ERROR", sqlstate="23505", constraint="pgonce.effect_pkey", ours=OURS)
    )
    assert decision.verdict is Verdict.REPLAY_CHECK
    assert not asked.take(decision, sqlstate="23505", constraint="pgonce.effect_pkey")


CODES = sorted({rule.code.ljust(5, "0") for rule in RULES if rule.code} | {"BUSY1", "23514"})


@given(
    st.sampled_from(CODES),
    st.sampled_from(list(Phase)),
    st.sampled_from(["ERROR", "FATAL", "PANIC", None]),
    st.sampled_from([None, "pgonce.event_pkey", "public.x"]),
    st.booleans(),
)
def test_whatever_is_asked_for_only_what_is_final_is_overridden(
    code: str, phase: Phase, severity: str | None, constraint: str | None, is_alive: bool
) -> None:
    failure = Failure(
        phase=phase, severity=severity, sqlstate=code, constraint=constraint, ours=OURS, connection_alive=is_alive
    )
    decision = decide(failure)
    if Overrides.of({code: 1, "public.x": 1}).take(decision, sqlstate=code, constraint=constraint):
        assert decision.verdict in FINAL
        assert phase is not Phase.COMMIT or severity == "ERROR"


def test_an_error_without_a_code_is_never_overridden() -> None:
    decision = decide(Failure(phase=Phase.STATEMENT, connection_alive=True))
    assert not Overrides.of({"public.x": 1}).take(decision, sqlstate=None, constraint="public.x")


def test_waits_are_read_in_seconds() -> None:
    assert read_backoff("0.05") == Backoff(first_s=0.05, cap_s=CAP_S)
    assert read_backoff("0.05,30") == Backoff(first_s=0.05, cap_s=30)
    assert read_backoff("5") == Backoff(first_s=5, cap_s=5)


@pytest.mark.parametrize("text", ["", "x", "1,2,3", "1,", ",1", "1;2"])
def test_waits_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write FIRST or FIRST,CAP, in seconds"):
        read_backoff(text)


@pytest.mark.parametrize("text", ["0", "-1", "2,1", "nan", "inf", "1,inf"])
def test_waits_that_could_not_be_used_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        read_backoff(text)


@pytest.mark.parametrize("attempts", [0, -1, 1001, 2.5])
def test_attempts_are_a_whole_number_within_limits(attempts: int) -> None:
    with pytest.raises(ConfigurationError, match=f"--attempts {attempts}: it is a whole number from 1 to 1000"):
        Limits(attempts=attempts)
