"""Counts balance or they do not; the exit code follows from them in the order of the contract."""

from __future__ import annotations

import pytest

from pgonce.errors import ConfigurationError
from pgonce.model.deadline import Deadline
from pgonce.model.limits import CHUNK_DEADLINE_S, WHOLE_DEADLINE_S, Limits
from pgonce.model.outcome import Counts, Tally
from pgonce.model.report import exit_code_of


def test_triples_of_the_same_result_are_added() -> None:
    counts = Counts.from_rows([("rows", 3, 30), ("applied", 1, 10), ("applied", 2, 20)])
    assert counts.applied == Tally(3, 30)
    assert counts.balanced


@pytest.mark.parametrize("missing", [("applied", 2, 30), ("applied", 3, 29)])
def test_a_missing_row_or_cent_is_seen(missing: tuple[str, int, int]) -> None:
    assert not Counts.from_rows([("rows", 3, 30), missing]).balanced


@pytest.mark.parametrize(
    ("result", "code"),
    [("applied", 0), ("already", 0), ("adopted", 0), ("failed", 1), ("conflict", 1), ("rejected", 1), ("pending", 75)],
)
def test_each_result_has_its_exit_code(result: str, code: int) -> None:
    assert exit_code_of(Counts.from_rows([("rows", 1, 0), (result, 1, 0)])) == code


def test_pending_comes_before_failed() -> None:
    assert exit_code_of(Counts.from_rows([("failed", 1, 0), ("pending", 1, 0)])) == 75


def test_an_item_checkpoint_is_a_chunk_of_one_and_a_whole_file_may_take_a_day() -> None:
    assert Limits(checkpoint="item").rows == 1
    assert Limits().transaction_s == CHUNK_DEADLINE_S
    assert Limits(checkpoint="all").transaction_s == WHOLE_DEADLINE_S
    assert Limits(checkpoint="all", chunk_deadline_s=5).transaction_s == 5


def test_only_a_whole_file_checkpoint_stops_at_a_bad_row_by_itself() -> None:
    assert not Limits().stops_at_bad_row
    assert Limits(on_error="stop").stops_at_bad_row
    assert Limits(checkpoint="all").stops_at_bad_row
    assert not Limits(checkpoint="all", on_error="quarantine").stops_at_bad_row


@pytest.mark.parametrize(
    "values",
    [
        {"checkpoint": "row"},
        {"on_error": "ignore"},
        {"chunk_rows": 0},
        {"chunk_rows": 10**9},
        {"chunk_seconds": 0},
        {"attempts": 0},
        {"chunk_deadline_s": 0},
        {"deadline_s": -1},
        {"max_rejected": -1},
    ],
)
def test_limits_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**values)


def test_a_deadline_counts_down_on_the_clock_it_was_given_and_never_below_zero() -> None:
    now = [10.0]
    deadline = Deadline.after(2.0, lambda: now[0])
    assert deadline.left_s() == 2.0
    now[0] = 11.5
    assert (deadline.left_s(), deadline.passed) == (0.5, False)
    now[0] = 99.0
    assert (deadline.left_s(), deadline.passed) == (0.0, True)
