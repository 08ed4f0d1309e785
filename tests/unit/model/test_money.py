"""Amounts are read exactly, or refused."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError, RowRefused
from pgonce.model.money import MAX_CENTS, MAX_SCALE, format_cents, parse_cents


@pytest.mark.parametrize(
    ("value", "scale", "cents"),
    [
        ("100", None, 100),
        ("-100", 0, -100),
        ("007", None, 7),
        ("-0", None, 0),
        (100, None, 100),
        (Decimal(100), None, 100),
        (Decimal("1e2"), None, 100),
        ("0" * 100 + "7", None, 7),
        ("12.34", 2, 1234),
        ("12.3", 2, 1230),
        ("12", 2, 1200),
        ("-0.05", 2, -5),
        ("12.340", 2, 1234),
        ("12.00000", 2, 1200),
        ("0" * 100 + "1.50", 2, 150),
        ("0." + "0" * 100, 2, 0),
        (12, 2, 1200),
        (Decimal("12.34"), 2, 1234),
        (Decimal("-12.3400"), 2, -1234),
        (Decimal("0.05"), 2, 5),
        (Decimal("0e999999999"), 2, 0),
        (Decimal("0e-999999999"), 2, 0),
        (Decimal("1.5e3"), 2, 150000),
        (str(MAX_CENTS), None, MAX_CENTS),
        (str(-MAX_CENTS - 1), None, -MAX_CENTS - 1),
        ("92233720368547758.07", 2, MAX_CENTS),
        ("9.223372036854775807", MAX_SCALE, MAX_CENTS),
    ],
)
def test_an_amount_is_read_exactly(value: object, scale: int | None, cents: int) -> None:
    assert parse_cents(value, scale=scale, column="amount") == cents


@pytest.mark.parametrize(
    ("value", "scale", "reason"),
    [
        (None, None, "the amount is missing"),
        ("", 2, "the amount is empty"),
        ("12.34", None, "'12.34' is not a whole number of cents; if amounts have decimal places, declare"),
        ("100.00", 0, "declare how many (--amount-scale 2)"),
        (Decimal("100.00"), None, "100.00 is not a whole number of cents"),
        (Decimal("0.0"), None, "0.0 is not a whole number of cents"),
        ("abc", None, "'abc' is not a whole number of cents; write digits only"),
        ("1e2", None, "is not a whole number"),
        ("+1", None, "is not a whole number"),
        (" 1", None, "is not a whole number"),
        ("1\n", None, "is not a whole number"),
        ("1_000", None, "is not a whole number"),
        ("١٢", None, "is not a whole number"),
        ("--1", None, "is not a whole number"),
        ("12.345", 2, "'12.345' has more than 2 decimal places"),
        (Decimal("12.345"), 2, "12.345 has more than 2 decimal places"),
        (Decimal("1e-30"), 2, "has more than 2 decimal places"),
        (Decimal("1e-999999999"), 2, "has more than 2 decimal places"),
        ("1e2", 2, "'1e2' is not an amount; write it like 12.34"),
        ("1,234.50", 2, "'1,234.50' is not an amount"),
        ("$5", 2, "'$5' is not an amount"),
        (".5", 2, "'.5' is not an amount"),
        ("5.", 2, "'5.' is not an amount"),
        ("1.٢", 2, "is not an amount"),
        ("NaN", 2, "'NaN' is not an amount"),
        (Decimal("NaN"), 2, "NaN is not an amount"),
        (Decimal("Infinity"), None, "Infinity is not an amount"),
        (1.5, 2, "1.5 is a binary float"),
        (True, None, "true is not an amount"),
        ([1], None, "a value of type list is not an amount"),
        (str(MAX_CENTS + 1), None, f"an amount is at most {MAX_CENTS} (64 bits)"),
        (str(-MAX_CENTS - 2), None, "out of range"),
        (MAX_CENTS + 1, None, "out of range"),
        (MAX_CENTS, 2, "an amount is at most 92233720368547758.07 (64 bits)"),
        ("92233720368547758.08", 2, "out of range"),
        ("9" * 10_000, None, "out of range"),
        ("9" * 10_000, 2, "out of range"),
        pytest.param(10**100_000, None, "out of range", id="huge"),
        (Decimal("1e999999999"), None, "out of range"),
    ],
)
def test_what_is_no_exact_amount_is_refused_naming_the_column(value: object, scale: int | None, reason: str) -> None:
    with pytest.raises(RowRefused) as refused:
        parse_cents(value, scale=scale, column="amount")
    assert str(refused.value).startswith("column amount: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize("scale", [-1, MAX_SCALE + 1])
def test_a_scale_outside_its_range_is_a_mistake_of_the_options(scale: int) -> None:
    with pytest.raises(ConfigurationError, match=f"from 0 to {MAX_SCALE}"):
        parse_cents("1", scale=scale, column="amount")


@settings(deadline=None)
@given(st.integers(-MAX_CENTS - 1, MAX_CENTS), st.integers(0, MAX_SCALE))
def test_formatting_and_reading_an_amount_gives_it_back(cents: int, scale: int) -> None:
    text = format_cents(cents, scale)
    assert parse_cents(text, scale=scale, column="amount") == cents
    assert Decimal(text).scaleb(scale) == cents
    if scale:
        assert parse_cents(Decimal(text), scale=scale, column="amount") == cents


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12), st.integers(1, 6))
def test_text_and_number_of_one_value_are_read_alike_or_refused_alike(value: Decimal, scale: int) -> None:
    def read(amount: object) -> int | None:
        try:
            return parse_cents(amount, scale=scale, column="amount")
        except RowRefused:
            return None

    assert read(f"{value:f}") == read(value)


def test_cents_without_a_scale_are_shown_as_they_are() -> None:
    assert format_cents(-1250, None) == "-1250"
    assert format_cents(-5, 2) == "-0.05"
