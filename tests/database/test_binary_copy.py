"""Binary COPY from columns: byte for byte what the driver writes row by row, and what the server stores of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.copy import LibpqWriter

pa = pytest.importorskip("pyarrow")
binarycopy = pytest.importorskip("pgonce.db.binarycopy")

ORDERED = """
    select s, e, n from unnest(%s::text[], %s::text[], %s::bigint[]) t (s, e, n)
    order by s collate "C", e collate "C", n
"""
HANOI = dt.timezone(dt.timedelta(hours=7))
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
SOURCES = st.sampled_from(["", "a", "\u00e9"]) | TEXT
IDS = st.sampled_from(["b", "B", "10", "9"]) | TEXT
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXT),
    "bytea": (pa.binary(), st.binary(max_size=8)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "smallint": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "boolean": (pa.bool_(), st.booleans()),
}
CONSTANTS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (binarycopy.text, TEXT),
    "bytea": (binarycopy.Constant, st.binary(max_size=8)),
    "bigint": (binarycopy.bigint, TYPES["bigint"][1]),
    "integer": (binarycopy.integer, TYPES["integer"][1]),
    "boolean": (binarycopy.boolean, st.booleans()),
    "timestamptz": (
        binarycopy.timestamptz,
        st.datetimes(dt.datetime.fromisoformat("0001-01-02"), timezones=st.sampled_from([dt.UTC, HANOI])),
    ),
}


class Recorder(LibpqWriter):
    """Sends what the driver writes to the server, and keeps it."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        super().__init__(cursor)
        self.written = bytearray()

    def write(self, data: Any) -> None:
        """Keep and send."""
        self.written += data
        super().write(data)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    """Yield a connection whose transaction is rolled back."""
    with psycopg.connect(database, prepare_threshold=None) as opened:
        yield opened
        opened.rollback()


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[Any], list[tuple[Any, ...]]]:
    """Draw column types, the columns as arrays or constants, and the rows they stand for."""
    count = draw(st.integers(0, 12))
    names, given_columns, values = [], [], []
    for _ in range(draw(st.integers(1, 7))):
        if draw(st.booleans()):
            name = draw(st.sampled_from(sorted(TYPES)))
            type_, one = TYPES[name]
            column = draw(st.lists(one if draw(st.booleans()) else st.none() | one, min_size=count, max_size=count))
            before = draw(st.integers(0, 2))
            array = pa.array([*column[:before], *column], type_).slice(len(column[:before]))
            given_columns.append(array)
            values.append(column)
        else:
            name = draw(st.sampled_from(sorted(CONSTANTS)))
            make, one = CONSTANTS[name]
            constant = draw(st.none() | one)
            given_columns.append(binarycopy.NULL if constant is None else make(constant))
            values.append([constant] * count)
        names.append(name)
    return names, given_columns, list(zip(*values, strict=True)) if count else []


def stored(connection: psycopg.Connection, data: bytes) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    cursor.execute("truncate given")
    with cursor.copy("copy given from stdin (format binary)") as copy:
        copy.write(data)
    return cursor.execute("select * from given").fetchall()


def test_columns_are_written_as_the_driver_writes_rows(connection: psycopg.Connection) -> None:
    """I5, E8: whatever the types, the nulls and the constants."""

    @settings(max_examples=150, deadline=None)
    @given(tables())
    def check(drawn: tuple[list[str], list[Any], list[tuple[Any, ...]]]) -> None:
        names, given_columns, rows = drawn
        cursor = connection.cursor()
        cursor.execute("drop table if exists pg_temp.given")
        columns = sql.SQL(", ").join(sql.SQL(f"c{number} {name}") for number, name in enumerate(names))
        cursor.execute(sql.SQL("create temp table given ({})").format(columns))
        recorder = Recorder(cursor)
        with cursor.copy("copy given from stdin (format binary)", writer=recorder) as copy:
            copy.set_types(names)
            for row in rows:
                copy.write_row(row)
        expected = cursor.execute("select * from given").fetchall()
        written = binarycopy.whole(given_columns, len(rows))
        assert written == bytes(recorder.written)
        assert stored(connection, written) == expected
        assert [tuple(row) for row in expected] == rows

    check()


def test_several_blocks_make_one_copy(connection: psycopg.Connection) -> None:
    connection.execute("create temp table given (id text, cents bigint)")
    blocks = [[("a", 1), ("b", 2)], [], [("c", 3)]]
    parts = []
    for block in blocks:
        ids, cents = (
            pa.array([row[part] for row in block], type_) for part, type_ in enumerate((pa.string(), pa.int64()))
        )
        parts.append(binarycopy.rows([ids, cents], len(block)))
    data = b"".join((binarycopy.HEADER, *parts, binarycopy.TRAILER))
    assert stored(connection, data) == [("a", 1), ("b", 2), ("c", 3)]


def test_key_order_is_the_servers_bytewise_order_and_keeps_the_first_of_a_key_first(
    connection: psycopg.Connection,
) -> None:
    """I4: rows of one key stay in input order; the order is that of collation C."""

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.tuples(SOURCES, IDS), max_size=20))
    def check(keys: list[tuple[str, str]]) -> None:
        source, event_id = (pa.array([key[part] for key in keys], pa.string()) for part in (0, 1))
        numbers = pa.array(range(len(keys)), pa.int64())
        order = binarycopy.key_order(source, event_id)
        taken = binarycopy.ordered([source, event_id, numbers, binarycopy.NULL], order)
        found = list(zip(*(column.to_pylist() for column in taken[:3]), strict=True))
        rows = [(*key, number) for number, key in enumerate(keys)]
        expected = connection.execute(
            ORDERED,
            ([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]),
        ).fetchall()
        assert found == [tuple(row) for row in expected]
        assert (order is None) == (found == rows)

    check()


def test_what_cannot_be_copied_is_refused() -> None:
    with pytest.raises(ValueError, match="double"):
        binarycopy.rows([pa.array([1.5])], 1)
    with pytest.raises(ValueError, match="none of 2 rows"):
        binarycopy.rows([pa.array([1])], 2)
    with pytest.raises(ValueError, match="0 columns"):
        binarycopy.rows([], 2)
