"""Rules that no healthy server can be brought to: the proxy tells the code in the server's place, at each phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.ledger import once, proxies_in
from faults.staging import Told, stage_on
from pgonce.crashtest import boundary as at
from pgonce.model.policy import RULES, Phase, Verdict, When, rules_of, verdict_of

T, A = Verdict.TRANSIENT, Verdict.AMBIGUOUS

# A class is told by a code of it that has no rule of its own.
CODES = sorted({rule.code if len(rule.code) == 5 else f"{rule.code}0ZZ" for rule in RULES if rule.code})


def decided(code: str, phase: Phase) -> tuple[Verdict, bool, bool]:
    """Look the rule up by hand: verdict, burns, fresh. The proxy names no constraint, and nothing of ours timed out."""
    special = {When.OUR_KEY, When.OUR_LIMIT, When.STANDBY, When.WARNED, When.NO_CONNECTION, When.LOST}
    [rule] = [rule for rule in rules_of(code) if rule.when not in special] or [None]
    if rule is None:
        return Verdict.BUG, True, phase is Phase.COMMIT
    verdict = verdict_of(rule, phase)
    assert verdict is not None
    return verdict, rule.burns, rule.fresh or phase is Phase.COMMIT


@pytest.mark.parametrize("code", CODES)
def test_an_error_of_this_code_before_and_at_commit(empty_database: str, tmp_path: Path, code: str) -> None:
    """An ERROR of each code: the session tells the table's verdict, and the transaction was rolled back in both."""
    with stage_on(empty_database) as stage:
        for phase, where in ((Phase.STATEMENT, "insert into public.ledger"), (Phase.COMMIT, "commit")):
            with (
                proxies_in(tmp_path)(empty_database, once(where, at.error_before(code))) as (proxy, dsn),
                stage_on(empty_database, through=dsn, prepared=True) as through,
            ):
                told = through.attempt()
                assert len(proxy.fired) == 1
            verdict, burns, fresh = decided(code, phase)
            expected = Told(A, code, None, kept=False) if verdict is A else Told(verdict, code, burns, kept=not fresh)
            assert told == expected, phase
            assert not stage.is_applied()
        assert stage.heals()


def test_begin_refused_by_a_standby(empty_database: str, tmp_path: Path) -> None:
    """0A000 at BEGIN, as a standby says it: no attempt is used up, and the next try connects anew."""
    with (
        proxies_in(tmp_path)(empty_database, once("begin", at.error_before("0A000"))) as (_, dsn),
        stage_on(empty_database, through=dsn) as stage,
    ):
        assert stage.attempt() == Told(T, "0A000", burns=False, kept=False)
        assert not stage.is_applied()
        assert stage.heals()
