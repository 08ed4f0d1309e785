"""NDJSON: exact numbers, one meaning only, and a plain reason for every line that is no record."""

from __future__ import annotations

import json
import sys
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError
from pgonce.model.record import Filler, Malformed, Record
from unit.sources.source_reading import content, joined, limits, malformed, positions, read, records

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=10)
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            b'{"a":',
            b"1",
            b"}",
            b"\n",
            b"{}",
            b"[" * 70,
            b"\\ud800",
            b'"',
            b",",
            b"\xff",
            b"\0",
            b"\xef\xbb\xbf",
            b"NaN",
            b"1e9999999",
            b" ",
            b"x" * 90,
        ]
    ),
    max_size=40,
).map(b"".join)


def lines(data: bytes) -> list:
    return read(data, "given.ndjson")


@given(OBJECTS, st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_records_are_the_objects_that_were_written(objects, escaped, end) -> None:
    data = "".join(json.dumps(fields, ensure_ascii=escaped) + end for fields in objects).encode()
    assert records(lines(data)) == objects


@settings(max_examples=300)
@given(FRAGMENTS, st.integers(16, 200))
@example(b"x" * 300 + b"\n{}\n", 16)
@example(b"x" * 300 + b"\n\xef\xbb\xbf{}\n", 16)
def test_no_bytes_are_lost_and_any_boundary_is_good_to_resume_from(data, block) -> None:
    with limits(block=block, record=128, skip=64), content(data, "given.ndjson") as source:
        pieces = list(source.pieces())
        assert b"".join(piece.raw for piece in pieces) == data
        for number, position in enumerate(positions(pieces)):
            assert joined(list(source.pieces(position))) == joined(pieces[number:])
    with limits(block=200, record=128, skip=64):
        assert lines(data) == pieces


def test_numbers_are_exact_and_never_float() -> None:
    [fields] = records(lines(b'{"a":0.1,"b":12345678901234567890123,"c":1e2,"d":1.10,"e":[0.3]}\n'))
    assert fields == {
        "a": Decimal("0.1"),
        "b": 12345678901234567890123,
        "c": Decimal("1e2"),
        "d": Decimal("1.10"),
        "e": [Decimal("0.3")],
    }
    assert str(fields["d"]) == "1.10"
    assert type(fields["b"]) is int


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", "is not a JSON object but an array"),
        (b"7", "is not a JSON object but a number"),
        (b'"x"', "is not a JSON object but a string"),
        (b"null", "is not a JSON object but null"),
        (b"true", "is not a JSON object but true"),
        (b'{"a":1', "is not valid JSON: expecting ',' delimiter at character 7"),
        (b'  {"a" 1}', "at character 8"),
        (b"{}{}", "is not valid JSON: extra data at character 3"),
        (b'{"a":1,"b":2,"a":1}', 'has the key "a" twice in one object'),
        (b'{"x":[{"a":1,"a":2}]}', 'has the key "a" twice in one object'),
        (b'{"\\u0061":1,"a":2}', 'has the key "a" twice in one object'),
        (b'{"a":NaN}', "has the value NaN, which is not a number"),
        (b'{"a":-Infinity}', "has the value -Infinity, which is not a number"),
        (b'{"a":"\\ud800"}', "has the lone surrogate \\ud800"),
        (b'{"\\udfff":1}', "has the lone surrogate \\udfff"),
        (b'{"a":["\\u0000"]}', "has the character \\u0000"),
        (b'{"a":"\x00"}', "invalid control character"),
        (b'{"a":"\xff"}', "cannot be decoded as utf-8 at byte 7 of line 2"),
        (b' {"a":"\xed\xa0\x80"}', "cannot be decoded as utf-8 at byte 8 of line 2"),
        (b'{"a":' + b"9" * 5000 + b"}", "has an integer of 5000 digits; at most 640 are taken"),
        (b'{"a":1e999999999}', "has a number that is out of range: 1e999999999"),
        (b'{"a":1e9999999999999999999999}', "has a number that is out of range"),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "is nested more than 64 levels deep"),
        (b'{"a":' + b"[" * 400_000 + b"]" * 400_000 + b"}", "is nested more than 64 levels deep"),
        (b"\xef\xbb\xbf{}", "begins with a byte order mark in the middle of the file"),
    ],
)
def test_a_bad_line_says_why_and_its_neighbours_are_taken(line, reason) -> None:
    pieces = lines(b'{"id":1}\n' + line + b'\n{"id":3}\n')
    assert records(pieces) == [{"id": 1}, {"id": 3}]
    [(at, why)] = malformed(pieces)
    assert at == 2
    assert reason in why


def test_a_surrogate_pair_is_one_character() -> None:
    assert records(lines(b'{"a":"\\ud83d\\ude00"}\n')) == [{"a": "\U0001f600"}]


def test_nesting_up_to_the_limit_and_many_brackets_side_by_side_are_taken() -> None:
    deep = b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"
    wide = b'{"a":[' + b",".join([b"[]"] * 500) + b"]}"
    assert len(records(lines(deep + b"\n" + wide + b"\n"))) == 2


def test_what_is_a_record_does_not_depend_on_the_interpreters_digit_limit() -> None:
    """The limit can be set or lifted by the environment; the same file must stay the same events."""
    before = sys.get_int_max_str_digits()
    try:
        for limit in (0, 640):
            sys.set_int_max_str_digits(limit)
            pieces = lines(b'{"a":' + b"9" * 641 + b'}\n{"a":' + b"9" * 640 + b"}\n")
            assert [type(piece) for piece in pieces] == [Malformed, Record]
    finally:
        sys.set_int_max_str_digits(before)


def test_blank_lines_and_a_byte_order_mark_at_the_start_do_no_harm() -> None:
    pieces = lines(b'\xef\xbb\xbf{"id":1}\r\n\n \t\r\n{"id":2}')
    assert [type(piece) for piece in pieces] == [Record, Filler, Filler, Record]
    assert [piece.line for piece in pieces if isinstance(piece, Record)] == [1, 4]


def test_an_overlong_line_is_skipped_in_parts_and_the_next_one_is_taken() -> None:
    with limits(record=1024, skip=64):
        pieces = lines(b'{"id":1}\n{"a":"' + b"x" * 5000 + b'"}\n{"id":3}\n' + b"y" * 2000)
    assert records(pieces) == [{"id": 1}, {"id": 3}]
    assert malformed(pieces) == [(2, "the line is longer than 1024 bytes"), (4, "the line is longer than 1024 bytes")]
    assert max(len(piece.raw) for piece in pieces) <= 64


def test_an_empty_input_is_no_records() -> None:
    assert lines(b"") == []


@pytest.mark.parametrize("options", [{"encoding": "cp1252"}, {"delimiter": ";"}, {"columns": ("id",)}])
def test_options_of_other_formats_are_refused(options) -> None:
    with pytest.raises(ConfigurationError, match="NDJSON"):
        read(b"{}", "given.jsonl", **options)
