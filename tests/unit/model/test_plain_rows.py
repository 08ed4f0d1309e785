"""A row that is read in one go is the row that is read with care."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from pgonce.model.definition import Definition
from pgonce.model.record import Record
from pgonce.model.row import MAX_ID_BYTES, MAX_PAYLOAD_BYTES, PLAIN_DIGITS_MAX, Row, RowReader

DEFINITION = Definition(key=("id",), amount="cents", columns=("note", "more"))

ODD = ["", " ", "a ", " a", "a b", "é", "e\u0301", "\x00", "\x7f", "\ud800", '"', "\\", "\u00a0x", "x\u3000", "9", "٣"]
TEXT = st.one_of(st.sampled_from(ODD), st.text(max_size=8), st.text("ab1", min_size=1, max_size=4))
VALUE = st.one_of(TEXT, st.none(), st.integers(), st.booleans())
DIGITS = st.one_of(
    st.sampled_from(["0", "-0", "007", "1" * PLAIN_DIGITS_MAX, "9" * 19, "1" * 70, "+1", "1.0", "²", "٣", ""]), VALUE
)


@given(identity=VALUE, cents=DIGITS, note=VALUE, more=VALUE)
@example(identity="x" * (MAX_ID_BYTES // 4 + 1), cents="1", note="", more="")
@example(identity="x" * (MAX_ID_BYTES + 1), cents="1", note="", more="")
@example(identity="x", cents="1", note="n" * MAX_PAYLOAD_BYTES, more="")
@example(identity="x", cents="1", note="n" * (MAX_PAYLOAD_BYTES // 4), more="")
def test_both_ways_read_the_same(identity: object, cents: object, note: object, more: object) -> None:
    """I1, I5, I8: the same row, or the same reason why there is none."""
    reader = RowReader(DEFINITION, "s")
    record = Record(7, b"raw", {"id": identity, "cents": cents, "note": note, "more": more})
    with patch.object(RowReader, "_plain_row", lambda *_: None):
        careful = reader.read(record)
    assert reader.read(record) == careful


def test_a_plain_row_is_read_in_one_go() -> None:
    """Else the test above would compare one way with itself."""
    reader = RowReader(DEFINITION, "s")
    record = Record(7, b"raw", {"id": "PAY-1", "cents": "1200", "note": "x", "more": ""})
    assert reader._plain_row(record) == Row(7, "s", "PAY-1", 1200, '["x",""]', record.fields, b"raw")


def test_other_definitions_are_read_with_care() -> None:
    """Several key columns, a source's column, declared types and decimal places have rules of their own."""
    for definition in (
        Definition(key=("id", "note"), amount="cents", columns=("note", "more")),
        Definition(key=("id",), source_column="note", amount="cents", columns=("note", "more")),
        Definition(key=("id",), amount="cents", amount_scale=2, columns=("note", "more")),
        Definition(key=("id",), amount="cents", types={"note": "int"}, columns=("note", "more")),
        Definition(key=("id",), amount="cents"),
    ):
        assert not RowReader(definition, "s")._plain_columns
