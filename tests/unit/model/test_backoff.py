"""Waits double up to the cap and are spread evenly below it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError
from pgonce.model.backoff import CAP_S, FIRST_S, Backoff


def test_the_longest_waits_double_from_ten_milliseconds_up_to_the_cap() -> None:
    assert [Backoff().ceiling_s(n) for n in range(1, 10)] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_the_cap_holds_for_any_number_of_attempts() -> None:
    assert Backoff().ceiling_s(10**9) == CAP_S
    assert Backoff(first_s=1e-300, factor=1e300, cap_s=1e300).ceiling_s(10**9) == 1e300


@settings(deadline=None)
@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_the_drawn_share_of_the_longest_one(attempt: int, draw: float) -> None:
    backoff = Backoff(first_s=0.5, factor=3, cap_s=20)
    assert backoff.delay_s(attempt, lambda: draw) == draw * backoff.ceiling_s(attempt)


def test_the_same_seed_gives_the_same_waits_and_they_are_spread_over_the_whole_step() -> None:
    def waits(seed: int) -> list[float]:
        draw = random.Random(seed).random
        return [Backoff().delay_s(1, draw) for _ in range(1_000)]

    assert waits(1) == waits(1) != waits(2)
    assert min(waits(1)) < FIRST_S * 0.05
    assert max(waits(1)) > FIRST_S * 0.95


@settings(deadline=None)
@given(st.floats(1e-6, 10), st.floats(1.01, 100), st.floats(10, 1e6))
def test_the_longest_waits_never_shrink(first_s: float, factor: float, cap_s: float) -> None:
    steps = [Backoff(first_s=first_s, factor=factor, cap_s=cap_s).ceiling_s(n) for n in range(1, 30)]
    assert all(one <= other <= cap_s for one, other in pairwise(steps))


@pytest.mark.parametrize(
    ("first_s", "factor", "cap_s"),
    [(0, 2, 1), (-1, 2, 1), (2, 2, 1), (0.1, 1, 1), (0.1, 0.5, 1), (0.1, 2, float("inf")), (float("nan"), 2, 1)],
)
def test_steps_that_could_not_be_used_are_refused(first_s: float, factor: float, cap_s: float) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Backoff(first_s=first_s, factor=factor, cap_s=cap_s)


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        Backoff().delay_s(0, lambda: 0.5)
