"""CloudEvents: one event, one a line, or a batch; what is no whole event is found by its line or its number."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError
from pgonce.model.record import Filler, Malformed, Piece, Record
from pgonce.sources.cloudevents import event_of
from unit.sources.source_reading import content, joined, limits, malformed, positions, read, records


def event(number: int, **changes: object) -> dict[str, object]:
    whole = {"specversion": "1.0", "id": f"e{number}", "source": "/shop", "type": "paid", "data": {"amount": number}}
    return {name: value for name, value in (whole | changes).items() if value != "absent"}


def text(*events: object, form: str, indent: int | None = None) -> bytes:
    written = [json.dumps(one, indent=indent) for one in events]
    return ("[" + " ,\n".join(written) + "]\n" if form == "batch" else "".join(f"{one}\n" for one in written)).encode()


def taken(data: bytes) -> list[Piece]:
    return read(data, "given.json", format="cloudevents")


def expected(number: int) -> dict[str, object]:
    return {"ce_id": f"e{number}", "ce_source": "/shop", "ce_type": "paid", "amount": number}


@pytest.mark.parametrize("form", ["batch", "lines"])
def test_a_batch_and_an_event_a_line_say_the_same(form: str) -> None:
    pieces = taken(text(event(1), event(2), event(3), form=form))
    assert records(pieces) == [expected(1), expected(2), expected(3)]
    assert [piece.line for piece in pieces if isinstance(piece, Record)] == [1, 2, 3]


@pytest.mark.parametrize("indent", [None, 2])
def test_one_event_may_stand_on_one_line_or_on_many(indent: int | None) -> None:
    assert records(taken(text(event(1), form="lines", indent=indent))) == [expected(1)]


def test_a_batch_may_stand_on_many_lines_and_counts_its_events() -> None:
    pieces = taken(text(event(1), {"id": 2}, event(3), form="batch", indent=2))
    assert records(pieces) == [expected(1), expected(3)]
    assert [(piece.line, type(piece)) for piece in pieces if not isinstance(piece, Filler)] == [
        (1, Record),
        (2, Malformed),
        (3, Record),
    ]


@pytest.mark.parametrize("form", ["batch", "lines"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"specversion": "absent"}, "it has no specversion"),
        ({"specversion": "0.3"}, 'specversion "0.3"; only 1.0 is known'),
        ({"specversion": 1.0}, "only 1.0 is known"),
        ({"id": "absent"}, "has no id"),
        ({"id": None}, "has no id"),
        ({"id": ""}, "the attribute id is not a text"),
        ({"id": 7}, "the attribute id is not a text"),
        ({"source": "absent"}, "has no source"),
        ({"type": "absent"}, "has no type"),
        ({"data_base64": "AAA="}, "data_base64"),
        ({"data": "absent", "data_base64": "AAA="}, "data_base64"),
        ({"Trace": "x"}, "has the attribute 'Trace'"),
        ({"trace": {"a": 1}}, "the attribute trace is not"),
        ({"weight": 1.5}, "the attribute weight is not"),
        ({"data": {"ce_id": 1}}, "its data has the member 'ce_id'"),
        ({"data": {"a": "\ud800"}}, "lone surrogate"),
    ],
)
def test_what_is_no_whole_event_says_why_and_its_neighbours_are_taken(form, changes, reason) -> None:
    pieces = taken(text(event(1), event(2, **changes), event(3), form=form))
    assert records(pieces) == [expected(1), expected(3)]
    [(line, why)] = malformed(pieces)
    assert line == 2
    assert reason in why


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b"7", "not a JSON object"),
        (b'{"a":"\xff"}', "cannot be decoded"),
        (b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", "deep"),
    ],
)
def test_an_element_that_two_readers_could_take_in_two_ways_is_refused_alone(bad: bytes, reason: str) -> None:
    one, two = (json.dumps(event(number)).encode() for number in (1, 2))
    pieces = taken(b"[" + one + b"," + bad + b"," + two + b"]")
    assert records(pieces) == [expected(1), expected(2)]
    [(number, why)] = malformed(pieces)
    assert number == 2
    assert reason in why


@pytest.mark.parametrize(
    ("tail", "number", "reason"),
    [
        (b"", 2, "ends behind it without ]"),
        (b",", 3, "ends without ]"),
        (b", \n", 3, "ends without ]"),
        (b',{"id":', 3, "not valid JSON"),
        (b",]", 3, "missing"),
        (b",,", 3, "missing"),
        (b"] x", 3, "text follows"),
        (b"]]", 3, "text follows"),
        (b',{"note":"he said "pay",{"id":1},"}]', 3, "not valid JSON"),
        (b"}, {}]", 2, "not valid JSON"),
    ],
)
def test_a_broken_array_is_not_read_behind_its_break(tail: bytes, number: int, reason: str) -> None:
    one, two = (json.dumps(event(number)).encode() for number in (1, 2))
    pieces = taken(b"[" + one + b"," + two + tail)
    assert records(pieces) == [expected(n) for n in (1, 2) if n < number]
    [(at, why)] = malformed(pieces)
    assert at == number
    assert reason in why


def test_nothing_to_take_is_no_finding() -> None:
    for data in (b"", b" \n", b"[]", b" [ ]\n", b"\xef\xbb\xbf[]"):
        assert not [piece for piece in taken(data) if not isinstance(piece, Filler)]
    [(_, reason)] = malformed(taken(b"["))
    assert reason.startswith("the array ends without ]")


def test_an_event_a_line_keeps_its_neighbours_whatever_one_line_holds() -> None:
    whole = json.dumps(event(1)).encode() + b"\n"
    pieces = taken(b'{"id":"torn\n' + whole + b"\n" + whole.replace(b"e1", b"e2"))
    assert records(pieces) == [expected(1), expected(1) | {"ce_id": "e2"}]
    assert [line for line, _ in malformed(pieces)] == [1]


@pytest.mark.parametrize("form", ["batch", "lines"])
def test_an_event_that_is_too_long_is_skipped_in_parts_and_the_next_one_is_taken(form: str) -> None:
    with limits(record=400, skip=64, block=128):
        pieces = taken(text(event(1), event(2, data={"note": "x" * 900}), event(3), form=form))
    assert records(pieces) == [expected(1), expected(3)]
    [(line, reason)] = malformed(pieces)
    assert line == 2
    assert "longer than" in reason
    assert max(len(piece.raw) for piece in pieces) < 400


def test_one_event_on_many_lines_that_is_too_long_is_one_finding() -> None:
    with limits(record=400, skip=64, block=128):
        pieces = taken(text(event(1, data={"note": ["x" * 9] * 90}), form="lines", indent=1))
    assert [(line, "longer than" in reason) for line, reason in malformed(pieces)] == [(1, True)]
    assert not records(pieces)


def test_data_that_is_no_object_is_one_field_and_null_is_none() -> None:
    [fields] = records(taken(text(event(1, data=[1, 2], subject="s", time="2026-01-01T00:00:00Z"), form="lines")))
    assert fields["ce_data"] == [1, 2]
    assert (fields["ce_subject"], fields["ce_time"]) == ("s", "2026-01-01T00:00:00Z")
    assert "ce_data" not in records(taken(text(event(1, data=None), form="lines")))[0]


@pytest.mark.parametrize("data", [{"amount": 1, "deep": {"a": [1]}}, [1], "text", "absent"])
def test_an_event_put_together_from_its_fields_has_the_same_fields(data: object) -> None:
    [fields] = records(taken(text(event(1, data=data, subject="x"), form="lines")))
    assert records(taken(text(event_of(fields), form="lines"))) == [fields]


def test_the_content_tells_the_format_where_the_name_does_not() -> None:
    for name in ("x.json", "x", "-"):
        for form in ("batch", "lines"):
            with content(text(event(1), form=form), name) as source:
                assert source.format == "cloudevents"
    with content(text(event(1), form="lines"), "x.ndjson") as source:
        assert source.format == "ndjson"
    with pytest.raises(ConfigurationError, match="does not tell the format"), content(b'{"id":1}', "x.json"):
        pass


BROKEN = st.lists(
    st.sampled_from(
        [b"[", b"]", b",", b"{", b"}", b'"', b"\\", b" ", b"\n", b'{"id":"x"}', b'"a"', b"1", b"\xff", b"y" * 70]
        + [json.dumps(event(number)).encode() for number in (1, 2)]
    ),
    max_size=12,
).map(b"".join)


@settings(max_examples=300)
@given(BROKEN, st.sampled_from([b"", b"["]), st.integers(8, 200), st.integers(8, 200))
def test_no_bytes_are_lost_and_nothing_depends_on_how_they_arrive(data, begin, one, other) -> None:
    results = []
    for block in (one, other):
        with limits(block=block, record=400, skip=64):
            results.append(taken(begin + data))
    assert joined(results[0]) == joined(results[1])
    for piece in results[0]:
        if isinstance(piece, Record):
            assert json.loads(piece.raw)["id"] == piece.fields["ce_id"]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 9), max_size=6), st.sampled_from(["batch", "lines"]), st.sampled_from([None, 1]))
def test_reading_goes_on_behind_any_event(numbers, form, indent) -> None:
    events = [event(number) if number else {"id": 1} for number in numbers]
    data = text(*events, form=form, indent=indent if form == "batch" else None)
    with limits(block=64, record=10_000), content(data, "x.json", format="cloudevents") as source:
        pieces = list(source.pieces())
        places = positions(pieces)
        for number, piece in enumerate(pieces, 1):
            if not isinstance(piece, Filler):
                assert list(source.pieces(places[number])) == pieces[number:]
