"""Nasty delimited files from a seed, and what it takes to read them in two ways and find no difference."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pgonce.model.cursor import Cursor, Position
from pgonce.model.definition import Definition
from pgonce.model.record import Filler
from pgonce.model.row import Finding, Row, RowReader
from pgonce.sources import Input, columns
from unit.sources.source_reading import content

IDS = [
    "1", "a", "P-7", "007", "", " b", "b ", "b\xa0", "\xe9", "e\u0301", "x" * 513, "y" * 512,
    "\u65e5" * 171, "\U0001f600",
    'a"b', "a\\b",
]  # fmt: skip
AMOUNTS = [
    "0", "7", "-7", "1250", "007", "-0", "", "-", "1.5", "12.50", "12.505", "0.1", ".5", "5.", "--1", "1-2", "1e3",
    " 1", "+1", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "92233720368547758.07",
    "1.2.3", "\u0661", "9" * 70, "00000000000000000000000000000000000000000000000000000000000000000000005", "0x10",
    "1_0", "123456789012345678", "1234567890123456789",
]  # fmt: skip
NOTES = [
    "", "plain", "caf\xe9", "cafe\u0301", "a,b", "two\nlines", "two\r\nlines", "tab\there", 'say "hi"',
    "back\\slash", "\x01\x1f", "\x7f", "\u2028", "\u0344", "x" * 300, "null", "NaN", "\ufeffmark", "'", ";", "1",
    "true", "2026-02-28", "2026-02-30", "2026-11-30T07:00:00+07:00", '{"b":1,"a":[1.0]}', '{"a":1,"a":2}', "1.50",
]  # fmt: skip
DAMAGE = [
    b'"', b"\n", b"\r", b"\r\n", b"\x00", b"\xff", b",", b"\xef\xbb\xbf", b'""', b'"x"y', b"\n\n", b"a,b,c,d,e\n",
    b"\n1\n", b'\n"',
]  # fmt: skip

DEFINITIONS = [
    {"key": ("id",), "amount": "amount"},
    {"key": ("id",), "amount": "amount", "amount_scale": 2, "ignore": ("other",)},
    {"key": ("id", "note"), "amount": "amount", "amount_scale": 4, "source_column": "other"},
    {"key": ("id",), "source_column": "other", "payload": ()},
    {"key": ("note",), "payload": ("amount", "id"), "types": {"amount": "decimal", "other": "int"}},
    {"key": ("id",), "amount": "amount", "types": {"note": "date", "other": "text"}},
    {"key": ("id",), "amount": "amount", "types": {"note": "timestamp", "other": "bool"}},
    {"key": ("id",), "types": {"note": "json", "amount": "int"}},
]


def nasty_file(chance: random.Random) -> bytes:
    """Write some rows well, most of them plain, and then perhaps damage a few places."""
    rows = []
    plain = chance.random() < 0.5
    for number in range(chance.choice([0, 1, 2, 5, 20, 60])):
        if plain and chance.random() < 0.9:
            rows.append([f"p{number}", str(chance.randrange(10**6)), f"n{number % 5}", chance.choice("ab")])
        else:
            rows.append([chance.choice(IDS), chance.choice(AMOUNTS), chance.choice(NOTES), chance.choice(NOTES)])
    out = io.StringIO(newline="")
    end = chance.choice(["\n", "\n", "\r\n"])
    quoting = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    csv.writer(out, lineterminator=end, quoting=quoting).writerows([["id", "amount", "note", "other"], *rows])
    data = bytearray(out.getvalue().encode("utf-8", "surrogatepass"))
    if chance.random() < 0.3:
        del data[len(data) - chance.randrange(1, 4) :]
    for _ in range(chance.choice([0, 0, 0, 1, 1, 2, 5])):
        place = chance.randrange(len(data) + 1)
        data[place : place + chance.choice([0, 0, 1])] = chance.choice(DAMAGE)
    return bytes(data)


def nasty_options(chance: random.Random, data: bytes) -> dict[str, Any]:
    """Choose how a file is read: mostly the way it was written."""
    options: dict[str, Any] = {}
    if chance.random() < 0.1:
        options |= {"header": False, "columns": ("id", "amount", "note", "other")}
    if chance.random() < 0.1:
        options |= {"quotechar": chance.choice([None, "'"])}
    if chance.random() < 0.05:
        options |= {
            "delimiter": chance.choice([";", "\t", " "]),
            "header": False,
            "columns": ("id", "amount", "note", "other"),
        }
    if chance.random() < 0.05:
        options |= {"encoding": "cp1252"} if not data.startswith(b"\xef\xbb\xbf") else {}
    return options


@contextmanager
def small_blocks(*, block: int, odd: int) -> Iterator[None]:
    """Let even small files be many blocks."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(columns, "BLOCK_BYTES", block))
        stack.enter_context(patch.object(columns, "ODD_BYTES", odd))
        yield


def by_row(source: Input, reader: RowReader) -> tuple[list[Row | Finding], dict[int, Position]]:
    """Read row by row: all rows, and the position behind each piece, by its offset."""
    cursor = Cursor.start()
    rows, places = list[Row | Finding](), {0: cursor.position}
    for piece in source.pieces():
        cursor = cursor.advance(piece.raw)
        places[cursor.offset] = cursor.position
        if not isinstance(piece, Filler):
            rows.append(reader.read(piece))
    return rows, places


def by_column(source: Input, reader: RowReader, begin: Cursor) -> tuple[list[tuple[Any, ...]], list[columns.Block]]:
    """Read as columns: all rows as plain values in the order of their lines, and the blocks."""
    found: list[tuple[Any, ...]] = []
    blocks = []
    for block in columns.column_blocks(source, reader, begin):
        arrays = (block.line, block.source, block.event_id, block.amount_cents, block.payload)
        rows = list(zip(*(array.to_pylist() for array in arrays), strict=True))
        rows += [finding_values(finding) for finding in block.findings]
        found += sorted(rows, key=lambda row: row[0])
        blocks.append(block)
    return found, blocks


def finding_values(row: Finding) -> tuple[Any, ...]:
    return (row.line, row.kind, row.reason, row.raw)


def values(row: Row | Finding) -> tuple[Any, ...]:
    """The plain values of a row."""
    if isinstance(row, Finding):
        return finding_values(row)
    return (row.line, row.source, row.event_id, row.amount_cents, row.payload)


def check_same(data: bytes, definition: dict[str, Any], options: dict[str, Any], *, block: int, odd: int) -> int:
    """Read in both ways and compare everything; return how many rows came as columns without a row being looked at."""
    with content(data, "given.csv", **options) as source, small_blocks(block=block, odd=odd):
        made = Definition(**definition)
        if made.missing_from(source.columns or ()):
            return 0
        reader = RowReader(made.resolved(source.columns), "given")
        rows, places = by_row(source, reader)
        found, blocks = by_column(source, reader, Cursor.start())
        assert found == [values(row) for row in rows]
        at = Cursor.start().position
        for one in blocks:
            assert one.begin.position.offset >= at.offset
            at = one.end.position
            assert at == places[at.offset]
            chunk = one.chunk()
            assert (chunk.begin.position, chunk.end.position) == (one.begin.position, one.end.position)
            read = [entry.row for entry in chunk.entries]
            assert read == [row for row in rows if chunk.first_line <= row.line <= (read[-1].line if read else 0)]
            taken = [row for row in read if isinstance(row, Row)]
            assert [row.line for row in taken] == one.line.to_pylist()
            assert [finding_values(row) for row in read if isinstance(row, Finding)] == sorted(
                map(finding_values, one.findings)
            )
            if one.fields is not None:
                assert one.fields.to_pylist() == [dict(row.fields) for row in taken]
            assert at == chunk.begin.advance(entry.raw for entry in chunk.entries).position or not chunk.entries
        assert at == Position(source.size, data.count(b"\n"), source.digest)
        for one in blocks[:1]:
            rest, _ = by_column(source, reader, source.cursor(one.end.position))
            assert rest == found[len(one.chunk().entries) :]
        return sum(len(one.line) for one in blocks)
