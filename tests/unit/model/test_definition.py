"""A job's definition: what it needs, what it compares, and how it says what differs (SPEC I9)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pgonce.errors import ConfigurationError
from pgonce.model.definition import Definition

SETTLE = Definition(key=("id",), amount="cents", ignore=("fetched_at",), types={"booked": "date"})
HEADER = ("id", "account", "booked", "cents", "fetched_at")


def test_columns_are_fixed_by_the_first_header_and_stay() -> None:
    resolved = SETTLE.resolved(HEADER)
    assert resolved.columns == ("account", "booked")
    assert resolved.resolved((*HEADER, "memo")) is resolved


def test_open_records_keep_an_open_set_of_fields_unless_a_payload_is_named() -> None:
    assert SETTLE.resolved(None).columns is None
    assert replace(SETTLE, payload=("account",)).resolved(None).columns == ("account",)


def test_a_definition_survives_being_stored_as_json() -> None:
    resolved = replace(SETTLE, source_column="shop", amount_scale=2).resolved((*HEADER, "shop"))
    assert Definition.from_spec(json.loads(json.dumps(resolved.spec()))) == resolved


def test_differences_name_each_part_with_both_values_but_not_the_found_columns() -> None:
    stored = SETTLE.resolved(HEADER)
    other = replace(SETTLE, key=("id", "shop"), amount_scale=2)
    assert stored.differences(SETTLE) == []
    assert stored.differences(other) == ["key: stored id, now id,shop", "amount scale: stored none, now 2"]


def test_a_column_that_is_new_is_reported_and_an_ignored_one_is_not() -> None:
    resolved = SETTLE.resolved(HEADER)
    assert resolved.unknown_in((*HEADER, "memo")) == ["memo"]
    assert replace(resolved, payload=("account",)).unknown_in((*HEADER, "memo")) == []


def test_missing_columns_are_named_once_each() -> None:
    assert SETTLE.resolved(HEADER).missing_from(("id", "booked")) == ["cents", "account"]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"key": ()}, "--key"),
        ({"key": ("id", "id")}, "twice"),
        ({"key": ("id",), "types": {"a": "money"}}, "money"),
        ({"key": ("id",), "amount_scale": 2}, "--amount"),
        ({"key": ("id",), "payload": ("a",), "ignore": ("a",)}, "both name a"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_words(values: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        Definition(**values)
