"""Ids, payload texts, fingerprints and differences: what makes two rows one event, and one payload."""

from __future__ import annotations

import json
import unicodedata
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgonce.errors import InvariantBroken, RowRefused
from pgonce.model.canonical import canonical_json
from pgonce.model.identity import (
    MAX_ID_BYTES,
    MAX_PAYLOAD_BYTES,
    Difference,
    describe,
    differences,
    event_id,
    fingerprint,
    payload_text,
    source_text,
)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["pay-1"], "pay-1"),
        (["7"], "7"),
        ([7], "7"),
        (["007"], "007"),
        ([-7], "-7"),
        ([10**300], "1" + "0" * 300),
        (["e\u0301"], "é"),
        (["a b"], "a b"),
        (["UA", "1545", "2013-01-01"], '["UA","1545","2013-01-01"]'),
        (["UA", 1545, 'x"y'], '["UA","1545","x\\"y"]'),
        (["ệ", "e\u0323\u0302"], '["ệ","ệ"]'),
    ],
)
def test_ids_are_made_from_text_and_whole_numbers(values: list[object], text: str) -> None:
    assert event_id(values, [f"k{i}" for i in range(len(values))]) == text


def test_a_csv_7_and_a_json_7_are_one_id_and_007_is_another() -> None:
    assert event_id(["7"], ["k"]) == event_id([7], ["k"]) != event_id(["007"], ["k"])


BAD_KEYS = [
    (None, "is missing"),
    ("", "is empty"),
    (" x", "begins or ends with a blank"),
    ("x\u00a0", "begins or ends with a blank"),
    ("x\u3000", "begins or ends with a blank"),
    ("x\n", "begins or ends with a blank"),
    (True, "true cannot be an id"),
    (7.0, "7.0 cannot be an id"),
    (Decimal("7.0"), "7.0 cannot be an id"),
    (Decimal(7), "7 cannot be an id"),
    ({"a": 1}, "a value of type dict cannot be an id"),
    ("a\0", "U+0000"),
    ("a\ud800", "surrogate"),
    ("x" * (MAX_ID_BYTES + 1), f"longer than {MAX_ID_BYTES} bytes"),
    ("é" * (MAX_ID_BYTES // 2 + 1), f"longer than {MAX_ID_BYTES} bytes"),
    (10**100_000, f"longer than {MAX_ID_BYTES} bytes"),
]


@pytest.mark.parametrize(("value", "reason"), BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_a_value_that_is_no_id_is_refused_naming_the_column(value: object, reason: str) -> None:
    with pytest.raises(RowRefused) as alone:
        event_id([value], ["pay_id"])
    assert str(alone.value).startswith("column pay_id: ")
    assert reason in str(alone.value)
    with pytest.raises(RowRefused) as together:
        event_id(["x", value], ["first", "pay_id"])
    assert "pay_id: " in str(together.value)
    assert reason in str(together.value)


def test_an_id_is_measured_in_bytes_of_its_final_text() -> None:
    assert event_id(["é" * 256], ["k"]) == "é" * 256
    assert event_id(["e\u0301" * 256], ["k"]) == "é" * 256
    with pytest.raises(RowRefused, match=r"column a,b: the id .* is longer"):
        event_id(["x" * 300, "y" * 300], ["a", "b"])


def test_a_source_may_be_empty_but_else_obeys_the_rules_of_an_id() -> None:
    assert source_text("") == ""
    assert source_text("e\u0301") == "é"
    assert source_text(7) == "7"
    for value, reason in BAD_KEYS:
        if value != "":
            with pytest.raises(RowRefused, match="column source: "):
                source_text(value)
            assert reason


keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda text: "\0" not in text and not text[0].isspace() and not text[-1].isspace()
)


@settings(deadline=None)
@given(st.lists(keys, min_size=1, max_size=3), st.lists(keys, min_size=1, max_size=3))
@example(["a", "b"], ["a,b", "c"])
@example(["a", 'b","c'], ["a", "b"])
def test_different_keys_never_share_an_id(one: list[str], other: list[str]) -> None:
    other = (other * 3)[: len(one)]
    columns = [str(i) for i in range(len(one))]
    equal = [unicodedata.normalize("NFC", k) for k in one] == [unicodedata.normalize("NFC", k) for k in other]
    assert (event_id(one, columns) == event_id(other, columns)) == equal


# --- payload text -----------------------------------------------------------------------------------------------------


def payload(fields: dict[str, object], columns: list[str] | None = None, **types: str) -> str:
    return payload_text(fields, columns=columns, omit=frozenset({"fetched_at"}), types=types)


def test_a_closed_payload_is_the_array_of_its_columns_in_order_with_null_for_missing() -> None:
    fields: dict[str, object] = {"b": "2", "a": "1", "other": "x", "fetched_at": "now"}
    assert payload(fields, ["a", "b"]) == '["1","2"]'
    assert payload(fields, ["a", "gone", "b"]) == '["1",null,"2"]'
    assert payload({"a": None}, ["a"]) == "[null]"
    assert payload(fields, []) == "[]"
    assert payload({"a": ""}, ["a"]) == '[""]'


def test_an_open_payload_is_the_object_of_all_fields_but_the_omitted_ones() -> None:
    fields: dict[str, object] = {"b": Decimal("2.0"), "a": [None], "n": None, "fetched_at": "now"}
    assert payload(fields) == '{"a":[null],"b":2}'
    assert payload({}) == "{}"


def test_omitting_and_typing_a_field_see_its_name_in_normal_form() -> None:
    text = payload_text({"e\u0301": "x", "o\u0302": "007"}, columns=None, omit=frozenset({"é"}), types={"ô": "int"})
    assert text == '{"ô":7}'


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(RowRefused, match="column é: comes twice"):
        payload({"e\u0301": 1, "é": 1})


def test_declared_columns_are_compared_by_value() -> None:
    csv, ndjson = {"n": "007", "day": "2026-01-01", "m": "x"}, {"n": Decimal("7.0"), "day": "2026-01-01", "m": "x"}
    for columns in (["n", "day", "m"], None):
        assert payload(dict(csv), columns, n="int", day="date") == payload(dict(ndjson), columns, n="int", day="date")
    assert payload({"n": ""}, ["n"], n="int") == "[null]"
    with pytest.raises(RowRefused, match="column n: 'abc' is not a whole number"):
        payload({"n": "abc"}, ["n"], n="int")


@pytest.mark.parametrize("value", ['"', "\\", "\n", "\x7f", "\u0085", "\u00a0", "\u0301x", "e\u0301", "ệ", "", ","])
def test_awkward_strings_give_the_text_of_the_rule(value: str) -> None:
    assert payload({"a": value, "b": "x"}, ["a", "b"]) == canonical_json([value, "x"])
    assert payload({"a": "x", "b": value}, ["a", "b"]) == canonical_json(["x", value])


@pytest.mark.parametrize("value", ["\0", "\ud800", 1.5])
def test_a_value_without_canonical_form_is_refused_naming_its_column(value: object) -> None:
    for columns in (["a", "b"], None):
        with pytest.raises(RowRefused, match=r"^column b: "):
            payload({"a": "x", "b": value}, columns)


def test_a_payload_is_measured_in_bytes_and_the_refusal_names_the_largest_column() -> None:
    room = MAX_PAYLOAD_BYTES - len('["",""]')
    assert len(payload({"a": "", "b": "x" * room}, ["a", "b"])) == MAX_PAYLOAD_BYTES
    for big in ("x" * (room + 1), "é" * (room // 2 + 1)):
        with pytest.raises(RowRefused, match="column b: the row's payload is larger than 256 KiB"):
            payload({"a": "", "b": big}, ["a", "b"])


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5) | st.sampled_from(
    ["e\u0301", "\u0301", "\u0338", '"', "\\", "<\u0338", "ệ", "e\u0323\u0302", "\u1100", "\u1161"]
)


@settings(deadline=None)
@given(st.lists(texts, max_size=5))
def test_the_fast_form_for_strings_equals_the_rule(values: list[str]) -> None:
    columns = [str(i) for i in range(len(values))]
    assert payload(dict(zip(columns, values, strict=True)), columns) == canonical_json(values)


@settings(deadline=None)
@given(st.dictionaries(texts.map(lambda t: unicodedata.normalize("NFC", t)), texts | st.integers() | st.none()))
def test_an_open_payload_equals_the_rule_on_the_object(fields: dict[str, object]) -> None:
    assert payload_text(fields, columns=None) == canonical_json(fields)


def test_a_fingerprint_depends_on_payload_and_amount_and_stays_the_same_across_releases() -> None:
    assert fingerprint('["x"]', 100).hex() == "4f66297787d6670cb5122a1e7fa6ed0ffeb80cfa77c4638b49f2cc1993bb2d3c"
    assert len({fingerprint('["x"]', 100), fingerprint('["x"]', 101), fingerprint('["y"]', 100)}) == 3


# --- differences ------------------------------------------------------------------------------------------------------


def compare(
    stored: str,
    new: str,
    stored_columns: list[str] | None = None,
    new_columns: list[str] | None = None,
    amounts: tuple[int, int] = (1, 1),
) -> tuple[Difference, ...]:
    return differences(
        stored_payload=stored,
        stored_columns=stored_columns,
        stored_amount=amounts[0],
        new_payload=new,
        new_columns=new_columns,
        new_amount=amounts[1],
        amount_name="amount_cents",
    )


def test_every_differing_field_is_named_with_both_values() -> None:
    found = compare('["a",1,null]', '["b",1,{"x":2}]', ["p", "q", "r"], ["p", "q", "r"], (100, 200))
    assert found == (
        Difference("amount_cents", "100", "200"),
        Difference("p", '"a"', '"b"'),
        Difference("r", "null", '{"x":2}'),
    )


def test_equal_payloads_have_no_differences_also_when_their_column_lists_differ() -> None:
    assert compare('["a"]', '["a"]', ["p"], ["p"]) == ()
    assert compare('["a","x"]', '["x","a"]', ["p", "q"], ["q", "p"]) == ()
    assert compare('["a",null]', '{"p":"a"}', ["p", "q"], None) == ()
    assert compare('{"p":"a"}', '["a",null]', None, ["p", "q"]) == ()


def test_the_same_text_under_another_column_order_is_a_difference() -> None:
    assert [d.field for d in compare('["a","b"]', '["a","b"]', ["p", "q"], ["q", "p"])] == ["p", "q"]


def test_a_column_that_only_one_closed_list_knows_is_not_compared() -> None:
    assert compare('["a"]', '["a","new"]', ["p"], ["p", "added"]) == ()
    assert compare('["a","old"]', '["a"]', ["p", "dropped"], ["p"]) == ()
    assert compare('["a"]', '{"p":"a","added":1}', ["p"], None) == ()
    assert [d.field for d in compare('["a"]', '["b","new"]', ["p"], ["p", "added"])] == ["p"]


def test_an_open_list_knows_every_column() -> None:
    assert [d.field for d in compare('{"p":1}', '{"p":1,"q":2}')] == ["q"]
    assert [d.field for d in compare('{"p":1,"q":2}', '{"p":1}')] == ["q"]
    assert [d.field for d in compare('{"p":1}', "[1,2]", None, ["p", "q"])] == ["q"]


def test_a_text_made_under_older_unicode_tables_is_no_conflict() -> None:
    assert compare('["e\u0301"]', '["é"]', ["p"], ["p"]) == ()


def test_a_payload_that_does_not_fit_its_columns_is_a_broken_promise() -> None:
    for text, columns in (("[1,2]", ["p"]), ('{"p":1}', ["p"]), ("[1]", None)):
        with pytest.raises(InvariantBroken):
            compare(text, '["x"]', columns, ["x"])


fields = st.dictionaries(st.sampled_from("abc"), st.sampled_from([None, "x", "y", 1, Decimal("1.0")]))


@settings(deadline=None)
@given(fields, fields)
def test_differences_are_empty_exactly_if_the_payload_texts_are_equal(
    one: dict[str, object], two: dict[str, object]
) -> None:
    for columns in (["a", "b", "c"], None):
        stored, new = payload_text(one, columns=columns), payload_text(two, columns=columns)
        assert (compare(stored, new, columns, columns) == ()) == (stored == new)


def test_a_description_names_fields_shortens_values_and_redacts() -> None:
    found = (
        Difference("amount_cents", "100", "200"),
        Difference("memo", json.dumps("x" * 100), '"y"'),
        Difference("card", '"4111"', '"4222"'),
    )
    text = describe(found, redact=frozenset({"card"}))
    assert text == (
        "amount_cents: stored 100, now 200; "
        f'memo: stored "{"x" * 78}…, now "y"; '
        "card: stored (redacted), now (redacted)"
    )
    assert "4111" not in text


def test_values_that_look_alike_when_shortened_say_where_they_differ() -> None:
    found = (Difference("memo", f'"{"x" * 100}a"', f'"{"x" * 100}b"'), Difference("m", '"' + "x" * 99, '"' + "x" * 100))
    assert "memo: " in describe(found)
    assert "(they differ from character 102 on)" in describe(found)
    assert "(they differ from character 101 on)" in describe(found)
