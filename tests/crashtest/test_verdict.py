"""A difference has a direction: further than a clean run is doubled, not as far is lost."""

from __future__ import annotations

from decimal import Decimal

import pytest

from pgonce.crashtest.verdict import Counted, Evidence, Row, TableDifference, Verdict, judge, judge_table, worst


def counted(rows: int, total: int | None = None) -> Counted:
    """Rows, and the sum of a column."""
    return Counted(rows, {} if total is None else {"cents": Decimal(total)})


@pytest.mark.parametrize(
    ("before", "clean", "now", "verdict"),
    [
        (counted(0), counted(3), counted(4), Verdict.DOUBLED),
        (counted(0), counted(3), counted(2), Verdict.LOST),
        (counted(3), counted(0), counted(1), Verdict.LOST),  # a queue that was not emptied
        (counted(3), counted(1), counted(0), Verdict.DOUBLED),  # something was taken twice
        (counted(2), counted(2), counted(3), Verdict.CHANGED),  # a clean run adds nothing, so nothing was added twice
        (counted(1, 0), counted(1, 70), counted(1, 140), Verdict.DOUBLED),
        (counted(1, 0), counted(1, 70), counted(1, 0), Verdict.LOST),
        (counted(1, 100), counted(1, 30), counted(1, -40), Verdict.DOUBLED),  # paid out twice
        (counted(1, 100), counted(1, 30), counted(1, 100), Verdict.LOST),
        (counted(2, 50), counted(2, 50), counted(2, 60), Verdict.CHANGED),  # no direction to go by
        (None, counted(3), None, Verdict.LOST),
        (None, None, counted(3), Verdict.CHANGED),
    ],
)
def test_counts_and_sums_have_a_direction(
    before: Counted | None, clean: Counted | None, now: Counted | None, verdict: Verdict
) -> None:
    """Each line is a table before the program, after a clean run, and after a fault and a second run."""
    assert judge_table("t", before, clean, now, ()).verdict is verdict


def test_rows_that_stayed_as_they_were_are_lost() -> None:
    """A state that is still `pending`: as many rows, no sum, and the row is that from before."""
    rows = (Row("pending", before=1, clean=0, now=1), Row("done", before=0, clean=1, now=0))
    assert judge_table("t", counted(1), counted(1), counted(1), rows).verdict is Verdict.LOST


def test_a_row_twice_in_place_of_another_is_doubled() -> None:
    """One row was written twice and one not at all: as many rows, and the first is proven to be doubled."""
    rows = (Row("a", before=0, clean=1, now=2), Row("b", before=0, clean=1, now=0))
    assert judge_table("t", counted(0), counted(2), counted(2), rows).verdict is Verdict.DOUBLED


def test_other_rows_are_changed() -> None:
    """As many rows with other values, never seen before."""
    rows = (Row("a", before=0, clean=1, now=0), Row("b", before=0, clean=0, now=1))
    assert judge_table("t", counted(0), counted(1), counted(1), rows).verdict is Verdict.CHANGED


def difference(verdict: Verdict) -> TableDifference:
    """A table with this verdict."""
    return TableDifference("t", None, None, None, (), verdict, "because")


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(), Verdict.SAFE),
        (Evidence(tables=(difference(Verdict.LOST),)), Verdict.LOST),
        (Evidence(tables=(difference(Verdict.LOST), difference(Verdict.DOUBLED))), Verdict.DOUBLED),
        (Evidence(tables=(difference(Verdict.DOUBLED),), ended_well=False), Verdict.DOUBLED),
        (Evidence(tables=(difference(Verdict.LOST),), ended_well=False), Verdict.STUCK),
        (Evidence(ended_well=False), Verdict.STUCK),
        (Evidence(ended_well=False, timed_out=True), Verdict.STUCK),
        (Evidence(schema=("relation public.stage is there",)), Verdict.CHANGED),
        (Evidence(files=("offset",)), Verdict.CHANGED),
        (Evidence(invariants=("select 1",)), Verdict.CHANGED),
        (Evidence(leftovers=("the prepared transaction 'x'",)), Verdict.CHANGED),
    ],
)
def test_evidence_is_judged(evidence: Evidence, verdict: Verdict) -> None:
    """Doubled is the worst; missing is lost only if the program said that all is well."""
    assert judge(evidence)[0] is verdict


def test_the_worst_counts() -> None:
    """In this order: doubled, lost, changed, stuck, unreached, safe."""
    assert worst([Verdict.SAFE, Verdict.UNREACHED, Verdict.LOST, Verdict.DOUBLED]) is Verdict.DOUBLED
    assert worst([Verdict.SAFE, Verdict.UNREACHED]) is Verdict.UNREACHED
