"""Parquet: rows are the text that they stand for, exact, whatever wrote the file and however it is packed."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError, InputChanged, InputUnreadable, RowRefused
from pgonce.model.canonical import canonical_json, declared
from pgonce.model.record import Filler, Malformed, Record
from pgonce.sources import Input, ReadingOptions, open_input, parquetfile
from unit.sources.source_reading import content, malformed, positions, records

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def stored(table: Any, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@contextmanager
def parquet(table: Any, **options: object) -> Iterator[Input]:
    with content(stored(table, **options), "given.parquet") as source:
        yield source


def one(value: object, type_: Any) -> object:
    """What a column of this type gives for a value."""
    with parquet(pa.table({"v": pa.array([value], type_)})) as source:
        [fields] = records(list(source.pieces()))
    return fields["v"]


UTC = dt.UTC
HANOI = dt.timezone(dt.timedelta(hours=7))


@pytest.mark.parametrize(
    ("value", "type_", "read"),
    [
        ('Zo\u00eb "\\\n\x1f\x7f', pa.string(), 'Zo\u00eb "\\\n\x1f\x7f'),
        ("big", pa.large_string(), "big"),
        (-(2**63), pa.int64(), -(2**63)),
        (2**64 - 1, pa.uint64(), 2**64 - 1),
        (7, pa.int8(), 7),
        (Decimal("12.50"), pa.decimal128(10, 2), Decimal("12.50")),
        (Decimal("-0.000000001"), pa.decimal128(38, 9), Decimal("-0.000000001")),
        (Decimal(10**37), pa.decimal128(38, 0), 10**37),
        (Decimal("9" * 70 + ".5"), pa.decimal256(76, 1), Decimal("9" * 70 + ".5")),
        (True, pa.bool_(), True),
        (None, pa.string(), None),
        (None, pa.null(), None),
        (dt.date(2026, 2, 28), pa.date32(), "2026-02-28"),
        (dt.datetime.fromisoformat("2026-01-30T07:00:10"), pa.timestamp("s"), "2026-01-30T07:00:10"),
        (dt.datetime.fromisoformat("2026-01-30T07:00:10"), pa.timestamp("us"), "2026-01-30T07:00:10"),
        (dt.datetime.fromisoformat("2026-01-30T07:00:00.000120"), pa.timestamp("us"), "2026-01-30T07:00:00.00012"),
        (dt.datetime(1950, 1, 30, 7, tzinfo=HANOI), pa.timestamp("ms", "Asia/Bangkok"), "1950-01-30T00:00:00Z"),
        (dt.datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("ns", "UTC"), "2026-01-01T00:00:00Z"),
        (dt.time(7, 30), pa.time64("us"), "07:30:00"),
        (0.1, pa.float64(), 0.1),
        (1e300, pa.float64(), 1e300),
        (float("inf"), pa.float64(), float("inf")),
        (b"\xff\x00", pa.binary(), b"\xff\x00"),
        ([1, None, 3], pa.list_(pa.int64()), [1, None, 3]),
        ([], pa.list_(pa.int64()), []),
        ([1, 2], pa.list_(pa.int64(), 2), [1, 2]),
        ({"a": 1, "b": None}, pa.struct({"a": pa.int64(), "b": pa.string()}), {"a": 1, "b": None}),
        ([("x", [b"z"])], pa.map_(pa.string(), pa.list_(pa.binary())), {"x": [b"z"]}),
    ],
)
def test_every_kind_of_value_comes_exactly(value: object, type_: Any, read: object) -> None:
    found = one(value, type_)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("value", "type_", "kind", "same"),
    [
        (7, pa.int32(), "int", "007"),
        (Decimal("1.50"), pa.decimal128(9, 2), "decimal", "1.5"),
        (dt.date(2026, 1, 1), pa.date32(), "date", "2026-01-01"),
        (dt.datetime(2026, 1, 1, 7, tzinfo=HANOI), pa.timestamp("us", "UTC"), "timestamp", "2026-01-01 07:00+07"),
        (
            dt.datetime.fromisoformat("2026-01-01T07:00:00.000050"),
            pa.timestamp("us"),
            "timestamp",
            "2026-01-01T07:00:00.000050",
        ),
        (False, pa.bool_(), "bool", "f"),
    ],
)
def test_a_declared_column_is_the_same_as_in_csv(value: object, type_: Any, kind: str, same: str) -> None:
    assert canonical_json(declared(one(value, type_), kind, "v")) == canonical_json(declared(same, kind, "v"))


@pytest.mark.parametrize(
    ("value", "type_", "reason"),
    [
        (12.5, pa.float64(), "12.5 is a binary float"),
        (float("nan"), pa.float32(), "is a binary float"),
        (b"x", pa.binary(), "is a bytes"),
        ([0.5], pa.list_(pa.float64()), "is a binary float"),
    ],
)
def test_what_has_no_exact_form_is_refused_where_it_is_compared(value: object, type_: Any, reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        canonical_json(one(value, type_), field="v")


def test_text_that_is_none_is_refused_by_row() -> None:
    bad = pa.Array.from_buffers(pa.string(), 3, pa.array([b"ok", b"\xff\xfe", b"\0"]).buffers())
    with parquet(pa.table({"v": bad})) as source:
        pieces = list(source.pieces())
    assert records(pieces) == [{"v": "ok"}]
    [(two, surrogate), (three, nul)] = malformed(pieces)
    assert (two, three) == (2, 3)
    assert "surrogate" in surrogate
    assert "NUL" in nul


def test_a_map_with_the_same_name_twice_is_refused() -> None:
    values = pa.array([[("a", 1), ("a", 2)], [("b", 1)]], pa.map_(pa.string(), pa.int64()))
    with parquet(pa.table({"v": values})) as source:
        pieces = list(source.pieces())
    assert records(pieces) == [{"v": {"b": 1}}]
    assert "twice" in malformed(pieces)[0][1]


TABLE = pa.table({"id": pa.array(range(1, 101), pa.int64()), "note": [f"n{number % 7}" for number in range(100)]})


def test_the_line_of_a_row_is_its_number_and_the_text_is_all_there_is() -> None:
    with parquet(TABLE, row_group_size=7) as source:
        pieces = list(source.pieces())
        assert [piece.line for piece in pieces if isinstance(piece, Record)] == list(range(1, 101))
        text = b"".join(piece.raw for piece in pieces)
        assert (source.size, source.digest) == (len(text), hashlib.sha256(text).hexdigest())
        assert source.columns == ("id", "note")
    header, *lines = text.replace(b"}}", b"}}\n", 1).splitlines()
    assert json.loads(header) == {"parquet": {"id": "integer", "note": "text"}}
    assert [json.loads(line) for line in lines] == TABLE.to_pylist()


def test_the_same_rows_are_the_same_content_however_they_are_stored() -> None:
    other = TABLE.set_column(1, "note", TABLE["note"].dictionary_encode()).cast(
        pa.schema({"id": pa.int32(), "note": pa.dictionary(pa.int32(), pa.large_string())})
    )
    ways = [
        stored(TABLE),
        stored(TABLE, compression="zstd", row_group_size=9, data_page_version="2.0"),
        stored(other, compression="none", use_dictionary=False),
    ]
    assert len(set(ways)) == 3
    digests = set()
    for way in ways:
        with content(way, "x.parquet") as source:
            digests.add(source.digest)
    assert len(digests) == 1


def test_other_values_or_other_kinds_are_other_content() -> None:
    columns = [
        pa.array([1, 2]),
        pa.array(["1", "2"]),
        pa.array([1.0, 2.0]),
        pa.array([Decimal(1), Decimal(2)], pa.decimal128(5, 1)),
        pa.array([b"1", b"2"]),
        pa.array([True, False]),
        pa.array([None, None], pa.int64()),
        pa.array([None, None], pa.string()),
        pa.array([], pa.string()),
        pa.array([], pa.int64()),
    ]
    digests = set()
    for column in columns:
        with parquet(pa.table({"v": column})) as source:
            digests.add(source.digest)
    assert len(digests) == len(columns)


def test_reading_goes_on_behind_any_row_and_only_behind_the_same_rows() -> None:
    with parquet(TABLE, row_group_size=7) as source, patch.object(parquetfile, "BATCH_ROWS_MAX", 3):
        pieces = list(source.pieces())
        places = positions(pieces)
        for number in (2, 8, 50, 101):
            assert list(source.pieces(places[number])) == pieces[number:]
            assert source.cursor(places[number]).position == places[number]
    changed = TABLE.set_column(1, "note", pa.array(["other", *TABLE["note"].to_pylist()[1:]]))
    with parquet(changed) as source, pytest.raises(InputChanged, match="not those that were already taken"):
        list(source.pieces(places[50]))
    longer = pa.concat_tables([TABLE, TABLE])
    with parquet(longer) as source:
        assert next(iter(source.pieces(places[100]))) == pieces[100]


def test_a_file_without_rows_has_a_header() -> None:
    with parquet(TABLE.slice(0, 0)) as source:
        assert [type(piece) for piece in source.pieces()] == [Filler]
        assert source.size > 0


def test_the_content_says_that_it_is_parquet() -> None:
    for name in ("x", "-", "x.PQ", "x.json"):
        with content(stored(TABLE), name) as source:
            assert source.format == "parquet"


@pytest.mark.parametrize(
    ("data", "name", "options", "words"),
    [
        (stored(TABLE), "x.csv", {}, "is a Parquet file, not csv; say --format parquet"),
        (b"id,amount\n", "x.parquet", {}, "does not begin with PAR1"),
        (b"", "x.parquet", {}, "is empty"),
        (stored(TABLE), "x.parquet", {"columns": ("a",), "header": False}, "do not apply to Parquet"),
        (stored(TABLE), "x.parquet", {"encoding": "cp1252"}, "always UTF-8"),
        (stored(TABLE), "x.parquet", {"compression": "gzip"}, "leave --compression out"),
        (stored(pa.table({"v": pa.array([1], pa.duration("s"))})), "x.parquet", {}, "'v' is of the type duration"),
        (stored(pa.table([[1], [2]], names=["a", "a"])), "x.parquet", {}, "more than one column is called 'a'"),
        (stored(pa.table([[1]], names=[""])), "x.parquet", {}, "has no name"),
        (stored(TABLE), "x.parquet", {"delimiter": ";"}, "--delimiter"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_reason(data, name, options, words) -> None:
    with pytest.raises(ConfigurationError) as caught, content(data, name, **options):
        pass
    assert words in str(caught.value)


def test_a_packed_parquet_file_is_to_be_unpacked_first() -> None:
    import gzip

    with pytest.raises(ConfigurationError, match="unpack it first"), content(gzip.compress(stored(TABLE)), "x.parquet"):
        pass


@pytest.mark.parametrize("cut", [4, 100, -1, -20])
def test_a_file_that_was_cut_off_is_refused_before_any_row(cut: int) -> None:
    with pytest.raises(InputUnreadable, match="no whole Parquet file"), content(stored(TABLE)[:cut], "x.parquet"):
        pass


def test_damaged_pages_are_refused_before_any_row() -> None:
    data = bytearray(stored(TABLE, compression="zstd"))
    data[4:60] = bytes(56)
    with pytest.raises(InputUnreadable, match="damaged in or after row 1"), content(bytes(data), "x.parquet"):
        pass


def test_a_file_that_is_replaced_while_it_is_read_is_noticed() -> None:
    other = TABLE.set_column(0, "id", pa.array(range(2, 102), pa.int64()))
    with tempfile.TemporaryFile() as file:
        file.write(stored(TABLE))
        file.flush()
        source = Input(file.fileno(), "x.parquet", ReadingOptions())
        file.seek(0)
        file.write(stored(other))
        file.flush()
        with pytest.raises(InputChanged):
            list(source.pieces())


def test_a_row_that_is_too_long_is_one_finding() -> None:
    table = pa.table({"id": [1, 2, 3], "note": ["a", "x" * 2_000_000, "b"]})
    with parquet(table) as source:
        pieces = list(source.pieces())
    assert [fields["id"] for fields in records(pieces)] == [1, 3]
    assert [(line, "longer than" in reason) for line, reason in malformed(pieces)] == [(2, True)]


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(stored(TABLE))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pgonce\[parquet\]'"), open_input(path):
        pass


SPAN = (dt.datetime.fromisoformat("1700-01-01T00:00:00"), dt.datetime.fromisoformat("2200-01-01T00:00:00"))
NESTED = st.fixed_dictionaries({"k": st.none() | st.text('a\u00e9"\\', max_size=3), "v": st.none() | st.floats()})
VALUES: dict[str, tuple[Any, Any]] = {
    "s": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "d": (pa.decimal128(30, 4), st.decimals(-(10**20), 10**20, places=4)),
    "f": (pa.float64(), st.floats()),
    "t": (pa.timestamp("us"), st.datetimes()),
    "z": (
        pa.timestamp("ns", "UTC"),
        st.datetimes(
            dt.datetime.fromisoformat("1700-01-01T00:00:00"), dt.datetime.fromisoformat("2200-01-01T00:00:00")
        ),
    ),
    "y": (pa.date32(), st.dates()),
    "b": (pa.binary(), st.binary(max_size=4)),
    "l": (pa.list_(pa.struct({"k": pa.string(), "v": pa.float64()})), st.lists(st.none() | NESTED, max_size=3)),
}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 7), st.integers(1, 5))
def test_the_text_does_not_depend_on_row_groups_and_batches(data: st.DataObject, group: int, batch: int) -> None:
    count = data.draw(st.integers(0, 9))
    table = pa.table(
        {
            name: pa.array(data.draw(st.lists(st.none() | values, min_size=count, max_size=count)), type_)
            for name, (type_, values) in VALUES.items()
        }
    )
    with parquet(table) as source:
        whole = list(source.pieces())
        for piece, row in zip(
            (piece for piece in whole if not isinstance(piece, Filler)), table.to_pylist(), strict=True
        ):
            if isinstance(piece, Malformed):
                assert "\0" in (row["s"] or "")
                continue
            for name in ("s", "i", "b"):
                assert piece.fields[name] == row[name]
            assert piece.fields["d"] == row["d"]
            assert repr(piece.fields["f"]) == repr(row["f"])
            assert (row["t"] is None) == (piece.fields["t"] is None)
            if row["t"] is not None:
                assert piece.fields["t"] == declared(row["t"].isoformat(), "timestamp", "t")
    with patch.object(parquetfile, "BATCH_ROWS_MAX", batch), parquet(table, row_group_size=group) as source:
        assert list(source.pieces()) == whole or repr(list(source.pieces())) == repr(whole)
