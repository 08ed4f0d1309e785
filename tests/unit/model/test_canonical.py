"""The canonical rule, sentence by sentence, and as properties over made-up values."""

from __future__ import annotations

import datetime as dt
import json
import random
import unicodedata
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgonce.errors import RowRefused
from pgonce.model.canonical import (
    MAX_NESTING,
    MAX_NUMBER_DIGITS,
    MAX_PLAIN_ZEROS,
    TYPES,
    canonical_json,
    declared,
    load_json,
    quoted,
    shortened,
)

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", '""'),
        ("a b", '"a b"'),
        (' "x\\y"\n\t\x01\x7f', '" \\"x\\\\y\\"\\n\\t\\u0001\x7f"'),
        ("Thanh toán 漢 😀", '"Thanh toán 漢 😀"'),
        (DECOMPOSED, f'"{COMPOSED}"'),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-7, "-7"),
        ([], "[]"),
        ([1, None, "x"], '[1,null,"x"]'),
        ((1, (2,)), "[1,[2]]"),
        ({}, "{}"),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({"a": None, "b": {"c": None}}, '{"b":{}}'),
        ({"a": [{"b": None}]}, '{"a":[{}]}'),
        ({"\uffff": 1, "\U00010000": 2}, '{"\uffff":1,"\U00010000":2}'),
    ],
)
def test_values_are_written_in_one_form(value: object, text: str) -> None:
    assert canonical_json(value) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("1e0", "1"),
        ("10e-1", "1"),
        ("-0", "0"),
        ("-0.00", "0"),
        ("0e999999999", "0"),
        ("0.10", "0.1"),
        ("-12.50", "-12.5"),
        ("100", "100"),
        ("1e2", "100"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("12345678901234567890.12345678901234567890", "12345678901234567890.1234567890123456789"),
        ("1e40", "1" + "0" * 40),
        ("1e41", "1e41"),
        ("12e41", "1.2e42"),
        ("-1.5e-50", "-1.5e-50"),
        ("1e-41", "0." + "0" * 40 + "1"),
        ("1e-42", "1e-42"),
        ("1e999999999", "1e999999999"),
        ("1e-999999999", "1e-999999999"),
    ],
)
def test_numbers_are_written_by_their_exact_value(written: str, text: str) -> None:
    assert canonical_json(Decimal(written)) == text


def test_a_big_integer_is_one_text_whether_it_came_as_int_or_decimal() -> None:
    for power in (MAX_PLAIN_ZEROS - 1, MAX_PLAIN_ZEROS, MAX_PLAIN_ZEROS + 1, MAX_PLAIN_ZEROS + 2, 300):
        for digit in (1, 12, -3):
            assert canonical_json(digit * 10**power) == canonical_json(Decimal(f"{digit}e{power}"))
            assert canonical_json(digit * 10**power + 1) == str(digit * 10**power + 1)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1.5, "column f: 1.5 is a binary float"),
        (float("nan"), "column f: nan is a binary float"),
        (Decimal("NaN"), "column f: NaN is not a number"),
        (Decimal("sNaN"), "column f: sNaN is not a number"),
        (Decimal("-Infinity"), "column f: -Infinity is not a number"),
        ("a\0b", "column f: holds the character U+0000"),
        ("a\ud800b", "column f: holds the lone surrogate U+D800"),
        ({"a": [1, {"b": "\udfff"}]}, "column f.a[1].b: holds the lone surrogate U+DFFF"),
        ({"a\0": 1}, "column f: holds the character U+0000"),
        ({COMPOSED: 1, DECOMPOSED: 1}, f"column f: has the name '{COMPOSED}' twice"),
        ({COMPOSED: None, DECOMPOSED: 1}, "twice"),
        ({1: 2}, "column f: has the name 1, which is not text"),
        ({"d": dt.date(2026, 1, 1)}, "column f.d: is a date or time object; declare the column"),
        (b"x", "column f: is a bytes, which has no canonical form"),
        ({1, 2}, "column f: is a set"),
        pytest.param(10**MAX_NUMBER_DIGITS, f"column f: has more than {MAX_NUMBER_DIGITS} digits", id="one-too-many"),
        pytest.param(10**100_000, f"column f: has more than {MAX_NUMBER_DIGITS} digits", id="huge"),
        (Decimal("1" * (MAX_NUMBER_DIGITS + 1)), f"column f: has more than {MAX_NUMBER_DIGITS} digits"),
    ],
)
def test_what_has_no_canonical_form_is_refused_naming_the_place(value: object, reason: str) -> None:
    with pytest.raises(RowRefused) as refused:
        canonical_json(value, field="f")
    assert reason in str(refused.value)


def test_numbers_and_nesting_are_accepted_up_to_their_limits() -> None:
    largest = 10**MAX_NUMBER_DIGITS - 1
    assert canonical_json(largest) == canonical_json(Decimal(largest)) == "9" * MAX_NUMBER_DIGITS
    value: object = "x"
    for _ in range(MAX_NESTING):
        value = [value]
    assert canonical_json(value) == "[" * MAX_NESTING + '"x"' + "]" * MAX_NESTING
    with pytest.raises(RowRefused, match=f"nested more than {MAX_NESTING} deep"):
        canonical_json({"a": value})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,"a":1}', "has the name 'a' twice"),
        ("[NaN]", "holds NaN"),
        ("[-Infinity]", "holds -Infinity"),
        ("{", "is not JSON: .* at character 2"),
        ("", "is not JSON"),
        ("[" * 100_000, "nested more than"),
        ("9" * 5_000, "digits"),
        ("1e99999999999999999999", "power of ten is out of range"),
    ],
)
def test_json_text_that_does_not_say_one_thing_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RowRefused, match=f"column c: .*({reason})"):
        load_json(text, field="c")


def test_json_numbers_are_read_exactly() -> None:
    assert load_json("[0.1,1e400,12345678901234567890]", field="c") == [
        Decimal("0.1"),
        Decimal("1e400"),
        12345678901234567890,
    ]


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("text", "", ""),
        ("text", DECOMPOSED, COMPOSED),
        ("text", 7, "7"),
        ("int", "007", 7),
        ("int", "-0", 0),
        ("int", Decimal("7.0"), 7),
        ("int", Decimal("7e2"), 700),
        ("int", 10**50, 10**50),
        ("decimal", "1.50", Decimal("1.5")),
        ("decimal", "15e-1", Decimal("1.5")),
        ("decimal", "-007", Decimal(-7)),
        ("decimal", 3, 3),
        ("bool", "TRUE", True),
        ("bool", "t", True),
        ("bool", "Yes", True),
        ("bool", "1", True),
        ("bool", 1, True),
        ("bool", True, True),
        ("bool", "false", False),
        ("bool", "F", False),
        ("bool", "no", False),
        ("bool", "0", False),
        ("bool", 0, False),
        ("date", "2024-02-29", "2024-02-29"),
        ("date", dt.date(2024, 2, 29), "2024-02-29"),
        ("timestamp", "2026-11-30T07:00:00+07:00", "2026-11-30T00:00:00Z"),
        ("timestamp", "2026-11-30 00:00:00Z", "2026-11-30T00:00:00Z"),
        ("timestamp", "2026-11-30t00:00z", "2026-11-30T00:00:00Z"),
        ("timestamp", "2026-11-29T18:30:00.250-0530", "2026-11-30T00:00:00.25Z"),
        ("timestamp", "2026-11-30T02:00:00+02", "2026-11-30T00:00:00Z"),
        ("timestamp", "2026-11-30T00:00:00", "2026-11-30T00:00:00"),
        ("timestamp", "2026-11-30T00:00:00.123456000", "2026-11-30T00:00:00.123456"),
        ("timestamp", "2026-11-30T00:00:00.000", "2026-11-30T00:00:00"),
        ("timestamp", dt.datetime(2026, 11, 30, 7, 0, 0, 5, dt.timezone(dt.timedelta(hours=7))),
         "2026-11-30T00:00:00.000005Z"),
        ("json", ' {"b" : 1.0} ', {"b": Decimal("1.0")}),
        ("json", [1], [1]),
    ],
)  # fmt: skip
def test_a_declared_column_is_read_into_its_value(type_: str, value: object, expected: object) -> None:
    read = declared(value, type_, "c")
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("text", Decimal("1.5"), "1.5 is not text"),
        ("text", True, "true is not text"),
        pytest.param("text", 10**MAX_NUMBER_DIGITS, "digits", id="text-huge"),
        ("text", ["x"], "a value of type list is not text"),
        ("int", "abc", "'abc' is not a whole number"),
        ("int", "1.0", "'1.0' is not a whole number"),
        ("int", "+1", "'+1' is not a whole number"),
        ("int", " 1", "' 1' is not a whole number"),
        ("int", "1\n", r"'1\n' is not a whole number"),
        ("int", "١", "is not a whole number"),
        ("int", Decimal("1.5"), "1.5 is not a whole number"),
        ("int", Decimal("1e-60"), "is not a whole number"),
        ("int", Decimal("1e999999999"), "is not a whole number"),
        ("int", Decimal("NaN"), "NaN is not a whole number"),
        ("int", True, "true is not a whole number"),
        ("int", "9" * (MAX_NUMBER_DIGITS + 1), "digits"),
        ("decimal", "1,5", "'1,5' is not a decimal number"),
        ("decimal", ".5", "'.5' is not a decimal number"),
        ("decimal", "NaN", "'NaN' is not a decimal number"),
        ("decimal", Decimal("NaN"), "NaN is not a decimal number"),
        ("decimal", 1.5, "1.5 is not a decimal number"),
        ("decimal", "1e99999999999999999999", "power of ten"),
        ("bool", "maybe", "'maybe' is not a truth value"),
        ("bool", 2, "2 is not a truth value"),
        ("date", "2026-02-30", "'2026-02-30' is not a day"),
        ("date", "30.11.2026", "'30.11.2026' is not a date"),
        ("date", "20261130", "'20261130' is not a date"),
        ("date", dt.datetime(2026, 1, 1), "is not a date"),  # noqa: DTZ001
        ("timestamp", "2026-11-30", "is not a timestamp"),
        ("timestamp", "2026-11-30T00:00:00.1234567", "finer than a microsecond"),
        ("timestamp", "2026-11-30T24:00:00", "is not a moment"),
        ("timestamp", "2026-11-30T23:59:60Z", "is not a moment"),
        ("timestamp", "2026-11-30T23:59:00+24:00", "is not a moment"),
        ("timestamp", "0001-01-01T00:00:00+01:00", "is not a moment"),
        ("timestamp", 5, "5 is not a timestamp"),
        ("json", "{a:1}", "is not JSON"),
    ],
)
def test_a_bad_declared_value_is_refused_naming_the_column(type_: str, value: object, reason: str) -> None:
    with pytest.raises(RowRefused) as refused:
        declared(value, type_, "c")
    assert str(refused.value).startswith("column c: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize("type_", TYPES)
def test_null_stays_null_and_empty_text_is_null_except_in_text(type_: str) -> None:
    assert declared(None, type_, "c") is None
    assert declared("", type_, "c") == ("" if type_ == "text" else None)


def test_values_in_messages_are_short_and_cannot_steer_a_terminal() -> None:
    assert shortened("x" * 80) == "x" * 80
    assert shortened("x" * 81) == "x" * 79 + "…"
    assert quoted("a\x1b[31m\u202e") == r"'a\x1b[31m\u202e'"
    assert quoted("\ud800") == r"'\ud800'"
    assert len(quoted(10**100_000)) < 60


# --- properties -------------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(),
    st.integers(-20, 20),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.decimals(-5, 5, places=1),
    st.builds(lambda digits, power: Decimal(f"{digits}e{power}"), st.integers(-99, 99), st.integers(-60, 60)),
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8) | st.sampled_from(
    [COMPOSED, DECOMPOSED, "ệ", "e\u0323\u0302", "e\u0302\u0323", "\u212b", "\u00c5", "7"]
)


def _unique_after_nfc(named: dict[str, object]) -> bool:
    return len({unicodedata.normalize("NFC", name) for name in named}) == len(named)


values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4).filter(_unique_after_nfc),
    max_leaves=12,
)


def same(one: object, other: object) -> bool:
    """Decide equality by the rule, from its sentences and without writing any text."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, Decimal)) and isinstance(other, (int, Decimal)):
        return one == other if isinstance(one, int) and isinstance(other, int) else Fraction(one) == Fraction(other)
    if isinstance(one, str) and isinstance(other, str):
        return unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = (
            {unicodedata.normalize("NFC", name): item for name, item in each.items() if item is not None}
            for each in (one, other)
        )
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return one is None and other is None


def reworded(value: object, dice: random.Random) -> object:
    """Say the same value in another way: other key order, number form, normal form, null for missing."""
    if isinstance(value, str):
        return unicodedata.normalize(dice.choice(["NFC", "NFD"]), value)
    if isinstance(value, list):
        return [reworded(item, dice) for item in value]
    if isinstance(value, dict):
        pairs = [
            (unicodedata.normalize(dice.choice(["NFC", "NFD"]), name), reworded(item, dice))
            for name, item in value.items()
            if item is not None or dice.random() < 0.5
        ]
        dice.shuffle(pairs)
        return dict(pairs) | ({"added null": None} if "added null" not in value else {})
    if isinstance(value, int) and not isinstance(value, bool):
        zeros = dice.randrange(3)
        return Decimal(f"{value * 10**zeros}e-{zeros}")
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        return Decimal((sign, (*digits, 0), exponent - 1))
    return value


@settings(deadline=None)
@given(values, values)
@example({"a": None}, {})
@example([None], [])
@example(True, 1)
@example(7, "7")
@example(-0, Decimal("-0.0"))
def test_texts_are_equal_exactly_if_the_values_are_equal_by_the_rule(one: object, other: object) -> None:
    assert (canonical_json(one) == canonical_json(other)) == same(one, other)


@settings(deadline=None)
@given(values, st.randoms(use_true_random=False))
def test_rewording_a_value_does_not_change_its_text(value: object, dice: random.Random) -> None:
    again = reworded(value, dice)
    assert same(value, again)
    assert canonical_json(again) == canonical_json(value)


@settings(deadline=None)
@given(values)
def test_the_text_is_json_and_reading_it_back_gives_the_same_text(value: object) -> None:
    text = canonical_json(value)
    json.loads(text)
    assert canonical_json(load_json(text, field="c")) == text


@settings(deadline=None)
@given(numbers)
def test_a_number_text_has_the_exact_value_and_no_float_in_between(number: int | Decimal) -> None:
    assert Fraction(canonical_json(number)) == Fraction(number)


@settings(deadline=None)
@given(st.datetimes(), st.integers(-23 * 60, 23 * 60))
def test_one_moment_is_one_timestamp_whatever_its_offset(naive: dt.datetime, minutes: int) -> None:
    moment = naive.replace(year=min(max(naive.year, 2), 9998), tzinfo=dt.UTC)
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(minutes=minutes)))
    assert declared(elsewhere.isoformat(), "timestamp", "c") == declared(moment.isoformat(), "timestamp", "c")
