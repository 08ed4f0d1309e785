"""A record becomes a row, or the finding that says why not (SPEC F3)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from pgonce.model.definition import Definition
from pgonce.model.record import Malformed, Record
from pgonce.model.row import KEPT_RAW_BYTES_MAX, Finding, Row, RowReader

HEADER = ("id", "who", "booked", "cents")
DEFINITION = Definition(key=("id",), amount="cents", types={"booked": "date"}).resolved(HEADER)


def read(fields: dict[str, object], source: str = "") -> Row | Finding:
    return RowReader(DEFINITION, source).read(Record(7, b"raw\n", fields))


def test_a_row_has_identity_amount_and_payload_of_the_other_columns() -> None:
    row = read({"id": "A1", "who": "x", "booked": "2026-01-31", "cents": "12"}, "shop")
    assert isinstance(row, Row)
    assert (row.key, row.amount_cents, row.payload, row.line) == (("shop", "A1"), 12, '["x","2026-01-31"]', 7)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"id": ""}, "id"),
        ({"id": None}, "id"),
        ({"id": " A1"}, "blank"),
        ({"cents": "12.5"}, "cents"),
        ({"cents": "9223372036854775808"}, "cents"),
        ({"cents": Decimal("0.5")}, "cents"),
        ({"booked": "31.01.2026"}, "booked"),
        ({"who": "a\0b"}, "who"),
    ],
)
def test_what_cannot_be_used_is_rejected_with_its_line_and_the_column(change: dict[str, object], word: str) -> None:
    found = read({"id": "A1", "who": "x", "booked": "2026-01-31", "cents": "12"} | change)
    assert isinstance(found, Finding)
    assert (found.kind, found.line) == ("rejected", 7)
    assert word in found.reason


def test_a_declared_column_outside_of_the_payload_is_checked_too() -> None:
    definition = Definition(key=("id",), payload=("who",), types={"booked": "date"}).resolved(("id", "who", "booked"))
    found = RowReader(definition, "").read(Record(1, b"", {"id": "A", "who": "x", "booked": "soon"}))
    assert isinstance(found, Finding)
    assert "booked" in found.reason


def test_the_source_comes_from_its_column_when_there_is_one() -> None:
    definition = Definition(key=("id",), source_column="shop").resolved(("id", "shop", "who"))
    row = RowReader(definition, "").read(Record(1, b"", {"id": "A", "shop": "HN", "who": "x"}))
    assert isinstance(row, Row)
    assert (row.source, row.payload) == ("HN", '["x"]')


def test_a_malformed_record_keeps_a_bounded_part_of_its_bytes() -> None:
    found = RowReader(DEFINITION, "").read(Malformed(3, b"x" * (KEPT_RAW_BYTES_MAX + 1), "too few columns"))
    assert isinstance(found, Finding)
    assert (len(found.raw), found.reason) == (KEPT_RAW_BYTES_MAX, "too few columns")
