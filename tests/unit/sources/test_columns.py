"""Columns: the same rows, findings, lines, positions and digests as row by row, whatever the file."""

from __future__ import annotations

import io
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError, InputChanged
from pgonce.model.cursor import Cursor
from pgonce.model.definition import Definition
from pgonce.model.row import RowReader
from pgonce.sources import Input, ReadingOptions, open_input
from unit.sources import nasty
from unit.sources.source_reading import content

pytest.importorskip("pyarrow")
columns = pytest.importorskip("pgonce.sources.columns")

# The loop of 20,000 files was run when this was written; a smaller one belongs to every run.
FILES = 400


@pytest.mark.parametrize("part", range(4))
def test_nasty_files_are_read_the_same_in_both_ways(part: int) -> None:
    taken = 0
    for seed in range(part * FILES // 4, (part + 1) * FILES // 4):
        chance = random.Random(seed)
        data = nasty.nasty_file(chance)
        options, definition = nasty.nasty_options(chance, data), chance.choice(nasty.DEFINITIONS)
        block, odd = chance.choice([64, 200, 1000, 5000, 2**21]), chance.choice([16, 64, 300])
        try:
            taken += nasty.check_same(data, definition, options, block=block, odd=min(block, odd))
        except ConfigurationError:
            continue
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {data!r} {definition} {options}") from error
    assert taken > 100


TEXT = st.text(
    st.sampled_from('a1",\n\r\t\\ \u00e9\u0301\u00a0\u2028\x01;.-') | st.characters(exclude_categories=["Cs"]),
    max_size=6,
)
AMOUNT = st.sampled_from(nasty.AMOUNTS) | st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{0,5})?", fullmatch=True)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(TEXT, AMOUNT, TEXT, TEXT), max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(nasty.DEFINITIONS),
    st.sampled_from([64, 300, 2**21]),
)
def test_rows_that_are_written_well_are_read_the_same_in_both_ways(rows, end, definition, block) -> None:
    out = io.StringIO(newline="")
    nasty.csv.writer(out, lineterminator=end, quoting=nasty.csv.QUOTE_ALL).writerows(
        [["id", "amount", "note", "other"], *rows]
    )
    nasty.check_same(out.getvalue().encode(), definition, {}, block=block, odd=min(block, 64))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b"1,2,3,4\n", b'"x"', b"\0"]), max_size=25
    ).map(b"".join),
    st.sampled_from([16, 64, 2**21]),
)
def test_any_bytes_are_read_the_same_in_both_ways(data: bytes, block: int) -> None:
    options = {"header": False, "columns": ("id", "amount", "note", "other")}
    nasty.check_same(data, nasty.DEFINITIONS[0], options, block=block, odd=min(block, 32))


@pytest.mark.parametrize("size", [511, 512, 513, 262_130, 262_140, 262_141, 262_150])
@pytest.mark.parametrize("place", [0, 2])
def test_what_is_too_long_is_refused_at_the_same_size_in_both_ways(size: int, place: int) -> None:
    row = ["a", "5", "n", "o"]
    row[place] = "x" * size
    data = b"id,amount,note,other\nb,6,n,o\n" + ",".join(row).encode() + b"\nc,7,n,o\n"
    for definition in nasty.DEFINITIONS[:3]:
        nasty.check_same(data, definition, {}, block=2**21, odd=64)


def reader_of(source: Input, **definition: Any) -> RowReader:
    return RowReader(Definition(**{"key": ("id",), "amount": "amount"} | definition).resolved(source.columns), "")


def test_what_is_plain_is_not_read_row_by_row() -> None:
    """The header and one row in a hundred are; nothing else, quoted or not."""
    plain = b"id,amount,note\n" + b"".join(b'%d,%d,"n, ""%d"""\n' % (n, n, n) for n in range(5000))
    with content(plain) as source, patch.object(RowReader, "read", side_effect=AssertionError):
        blocks = list(columns.column_blocks(source, reader_of(source), Cursor.start()))
    assert [block.rows for block in blocks] == [5000]
    bad = plain.replace(b"\n77,77,", b"\n77,,")
    with content(bad) as source, patch.object(RowReader, "read", autospec=True, side_effect=RowReader.read) as read:
        [block] = columns.column_blocks(source, reader_of(source), Cursor.start())
        assert read.call_count == 1
    assert [(finding.line, finding.raw) for finding in block.findings] == [(79, b'77,,"n, ""77"""\n')]
    assert (block.rows, block.fields.num_rows) == (4999, 4999)


def test_a_block_that_is_odd_is_read_row_by_row_around_the_place_only() -> None:
    data = bytearray(b"id,amount\n" + b"".join(b"%07d,5\n" % n for n in range(400_000)))
    data[2_000_000:2_000_000] = b"\n\n"
    with (
        content(bytes(data)) as source,
        patch.object(RowReader, "read", autospec=True, side_effect=RowReader.read) as read,
    ):
        blocks = list(columns.column_blocks(source, reader_of(source), Cursor.start()))
        assert read.call_count < 2 * columns.ODD_BYTES / 10
    lines = [line for block in blocks for line in block.line.to_pylist()]
    lines += [finding.line for block in blocks for finding in block.findings]
    assert len(set(lines)) in (400_000, 400_001)  # the blank lines may have cut a row in two
    assert blocks[-1].end.offset == len(data)


@pytest.mark.parametrize("data", [b"", b"id,amount\n", b"id,amount", b"\n\nid,amount\n\n"])
def test_an_input_without_rows_is_one_block_to_its_end(data: bytes) -> None:
    options = {} if data else {"header": False, "columns": ("id", "amount")}
    with content(data, **options) as source:
        [block] = columns.column_blocks(source, reader_of(source), Cursor.start())
    assert (block.rows, block.findings, block.end.offset) == (0, (), len(data))
    assert block.chunk().entries == ()


@pytest.mark.parametrize("name", ["x.ndjson", "x.csv"])
def test_what_cannot_be_read_as_columns_comes_as_blocks_of_rows(name: str) -> None:
    data = (
        b'{"id":"a","amount":1}\n{"id":"b"}\n' if name == "x.ndjson" else "id,amount\na,1\n\u00e9,\n".encode("cp1252")
    )
    options = {} if name == "x.ndjson" else {"encoding": "cp1252"}
    with content(data, name, **options) as source:
        block, last = columns.column_blocks(source, reader_of(source), Cursor.start())
    assert (block.event_id.to_pylist(), len(block.findings)) == (["a"], 1)
    assert last.end.position.digest == source.digest
    assert last.rows == 0


@pytest.mark.parametrize("change", ["replaced", "longer", "shorter"])
def test_a_file_that_changes_while_it_is_read_is_noticed_before_its_last_rows(change: str) -> None:
    rows = [b"%d,5\n" % number for number in range(1000)]
    with tempfile.TemporaryFile() as file:
        file.write(b"id,amount\n" + b"".join(rows))
        file.flush()
        source = Input(file.fileno(), "x.csv", ReadingOptions())
        if change == "replaced":
            file.seek(100)
            file.write(b"8")
        elif change == "longer":
            file.write(b"1000,5\n")
        else:
            file.truncate(5000)
        file.flush()
        found: list[Any] = []
        with nasty.small_blocks(block=1000, odd=64), pytest.raises(InputChanged):
            found.extend(columns.column_blocks(source, reader_of(source), Cursor.start()))
        assert sum(block.rows for block in found) < 1000


def test_memory_stays_constant(tmp_path: Path) -> None:
    """A skipped record of many blocks is not held."""
    path = tmp_path / "x.csv"
    with path.open("wb") as file:
        file.write(b"id,amount\n1,5\n2,")
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b"\n3,5\n")
    import tracemalloc

    with open_input(path) as source:
        tracemalloc.start()
        blocks = list(columns.column_blocks(source, reader_of(source), Cursor.start()))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert sum(block.rows for block in blocks) == 2
    assert peak < 20_000_000
