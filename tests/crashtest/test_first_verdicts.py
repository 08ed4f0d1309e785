"""A wrong program is found out, and its repaired version is called safe."""

from __future__ import annotations

from pathlib import Path

from crashtest.programs import GUARDED_SQL, INSERT_THEN_MARK_SQL, SCHEMA, crash_psql, table_of, unsafe_of
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.verdict import Verdict

BEFORE, AFTER = ([f"{fault} ({side})" for fault in ("kill", "terminate", "crash")] for side in ("before", "after"))
ONE_PAYMENT = SCHEMA.replace(", ('P-2', 20)", "")


def test_an_effect_whose_mark_comes_later_is_doubled_exactly_between_the_two(folder: Path) -> None:
    """Whatever happens after the effect is committed and before its mark is doubles it; nothing else does."""
    report = crash_psql(folder, INSERT_THEN_MARK_SQL, schema=ONE_PAYMENT)
    after = {("insert into ledger", blow, "DOUBLED") for blow in ("cut-after", *AFTER)}
    before = {("insert into done", blow, "DOUBLED") for blow in ("cut-before", "serialization", *BEFORE)}
    assert unsafe_of(report) == after | before
    assert report.is_proven_unsafe
    assert not report.is_safe
    assert report.sentence == "NOT SAFE (DOUBLED): SAFE at 3 of 5 points tried"
    assert report.baseline.left_out == ("ledger.at",)
    assert report.baseline.effect == ("done", "ledger")
    doubled = next(result for result in report.unsafe if result.trial.blow.name == "cut-after")
    assert doubled.evidence.tables[0].rows[0].text == '{"amount": 50, "payment_id": "P-1"}'
    assert (doubled.evidence.tables[0].rows[0].clean, doubled.evidence.tables[0].rows[0].now) == (1, 2)


def test_the_repaired_program_is_safe_everywhere_against_everything(folder: Path) -> None:
    """Effect and mark in one transaction: no fault at no point does any harm, and every trial was really made."""
    report = crash_psql(folder, GUARDED_SQL, schema=ONE_PAYMENT)
    assert {verdict for _, _, verdict in table_of(report)} == {Verdict.SAFE}
    assert report.is_safe
    assert report.sentence == "SAFE at 6 of 6 points tried"
    commit = {blow for words, blow, _ in table_of(report) if words == "commit"}
    assert commit == {"cut-before", "cut-after", "serialization", *BEFORE, *AFTER}
    for result in report.results:
        assert len(result.exits) == 2
        if result.trial.met.words != "(disconnecting)":
            assert result.exits[0] != "exit 0", "the program noticed the fault"


def test_a_script_of_single_statements_is_doubled_even_by_a_plain_second_run(folder: Path) -> None:
    """An autocommit psql script that inserts is not safe to run twice at all, and that is said first."""
    report = crash_psql(
        folder,
        "insert into ledger (payment_id, amount) select id, amount from payment;\n"
        "update balance set cents = cents + 70 where name = 'till';\n",
        faults=(Fault.CUT_AFTER,),
    )
    verdict, why = report.baseline.again
    assert verdict is Verdict.DOUBLED
    assert "140" in " ".join(one.why for one in report.baseline.again_evidence.tables), why
    assert ("update balance set", "cut-after", "DOUBLED") in unsafe_of(report)


def test_a_balance_that_is_added_to_is_doubled_by_its_sum(folder: Path) -> None:
    """A row that is only changed has no second copy; the sum that moved once more tells."""
    script = "update balance set cents = cents + 70 where name = 'till' and not exists (select from done);\n"
    script += "insert into done select id from payment on conflict do nothing;\n"
    report = crash_psql(folder, script, faults=(Fault.CUT_AFTER, Fault.CUT_BEFORE))
    assert unsafe_of(report) == {
        ("update balance set", "cut-after", "DOUBLED"),
        ("insert into done", "cut-before", "DOUBLED"),
    }
    assert report.baseline.again[0] is Verdict.SAFE
    assert report.unsafe[0].why == "balance: sum of cents is 140, 70 after a clean run"


def test_a_mark_before_its_effect_loses_it(folder: Path) -> None:
    """Between the mark and its effect everything is lost, and the program says all is well."""
    script = "\\set ON_ERROR_STOP 1\n"
    script += "select count(*) = 0 as todo from done \\gset\n\\if :todo\n"
    script += "insert into done select id from payment;\n"
    script += "insert into ledger (payment_id, amount) select id, amount from payment;\n\\endif\n"
    report = crash_psql(folder, script, faults=(Fault.CUT_BEFORE, Fault.KILL))
    lost = {("insert into ledger", "cut-before", "LOST"), ("insert into ledger", "kill (before)", "LOST")}
    assert unsafe_of(report) == lost | {("insert into done", "kill (after)", "LOST")}
