"""Read an input as blocks of columns: the same rows, findings and positions as row by row, many times as fast.

CSV and TSV in UTF-8 are read by pyarrow, where `layout` says for certain which records a block holds; the rest of a
block that is odd in any way, and every input of another kind, is read row by row from that very byte. What the rows say
is found for whole columns (`columntext`), and for each row that is not plain by the definition of a row.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from pgonce.model.chunk import Chunk, Entry
from pgonce.model.cursor import Cursor
from pgonce.model.record import Filler, Piece, Record
from pgonce.model.row import Finding, Row, RowReader
from pgonce.sources import blocks as byteblocks
from pgonce.sources.columntext import ColumnReader, Read
from pgonce.sources.layout import Layout, layout_of
from pgonce.sources.opened import Input

# Of a block's text there are a few copies in memory at a time; above this size nothing gets faster.
BLOCK_BYTES = 1024 * 1024
# What is read row by row because something in it is odd; then blocks grow again.
ODD_BYTES = 64 * 1024
# Rows that were read one by one are given on at this number, and so are bytes without a row.
ROWS_MAX = 10_000
CARRIED_BYTES_MAX = 1 << 20
# More rows than a block can hold.
MOST_ROWS = BLOCK_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive rows as columns, between two places of the input.

    ``source``, ``event_id`` and ``payload`` are arrays of text, ``amount_cents`` and ``line`` of 64-bit integers, by
    row and in input order. ``fields`` are the input's own columns as text, by row; None where records name their own.
    ``findings`` are the rows that could not be used, by line. ``chunk`` gives all of them as the row-wise reader does.
    """

    begin: Cursor
    end: Cursor
    source: pa.Array
    event_id: pa.Array
    amount_cents: pa.Array
    payload: pa.Array
    line: pa.Array
    fields: pa.Table | None
    findings: tuple[Finding, ...]
    chunk: Callable[[], Chunk]

    @property
    def rows(self) -> int:
        """The number of usable rows."""
        return len(self.line)


def column_blocks(
    source: Input, reader: RowReader, begin: Cursor, rows_max: Callable[[], int] = lambda: MOST_ROWS
) -> Iterator[Block]:
    """Yield the input's rows from a place on, which is its beginning or lies behind a row; the last block ends at the
    end of the input, and is there also if it holds no row. A block has at most ``rows_max()`` rows.

    Raises InputChanged as `Input.pieces` does. Safe to re-run: it only reads.
    """
    return _Blocks(source, reader, begin, rows_max).blocks()


class _Tap:
    """Bytes of the input from a place on: what was read and not yet used can be read again."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.waiting = bytearray()
        self._given = 0  # bytes of ``waiting`` that the row-wise reader was given
        self.ended = False

    def fill(self, size: int) -> None:
        """Have ``size`` bytes waiting, unless the input ends before."""
        while len(self.waiting) < size and not self.ended:
            data = self._read(size - len(self.waiting))
            self.waiting += data
            self.ended = not data

    def used(self, count: int) -> None:
        """Forget the first bytes."""
        del self.waiting[:count]
        self._given = max(0, self._given - count)

    def again(self) -> None:
        """Begin to read again from the first byte that was not used."""
        self._given = 0

    def read(self, size: int) -> bytes:
        """Give bytes on, as a stream does; they stay until they are used."""
        if self._given == len(self.waiting):
            self.fill(self._given + size)
        data = bytes(self.waiting[self._given : self._given + size])
        self._given += len(data)
        return data


class _Blocks:
    """One reading of an input."""

    def __init__(self, source: Input, reader: RowReader, begin: Cursor, rows_max: Callable[[], int]) -> None:
        self._source = source
        self._rows_max = rows_max
        self._reader = reader
        self._at = begin
        self._carried: list[bytes] = []  # bytes without a row, which belong to the row that follows them
        self._columns = _column_reader(source, reader)
        self._size = BLOCK_BYTES

    def blocks(self) -> Iterator[Block]:
        if self._columns is None:
            yield from self._one_by_one(self._source.pieces(self._at.position), until=self._source.size)
            yield self._block(())
            return
        self._tap = _Tap(self._source.bytes_from(self._at.offset))
        self._skip_header()
        last: Block | None = None
        while True:
            self._tap.fill(self._size + 1)  # so that the end is known before the last rows are given on
            if not self._tap.waiting:
                break
            for last in self._next():
                yield last
        self._check_end()
        if last is None or self._carried:
            yield self._block(())

    def _check_end(self) -> None:
        """Before the last rows are given on: was all of it what was opened?"""
        at, source = self._at, self._source
        ended = self._tap.ended and not self._tap.waiting and not self._carried
        if at.offset > source.size or (ended and (at.offset, at.digest) != (source.size, source.digest)):
            raise self._source.changed()

    def _skip_header(self) -> None:
        while self._place < self._source.header_end:
            self._tap.again()
            for piece in self._pieces():
                self._carry(piece.raw)
                if self._place >= self._source.header_end:
                    return

    @property
    def _feeds(self) -> int:
        return sum(part.count(b"\n") for part in self._carried)

    @property
    def _place(self) -> int:
        return self._at.offset + sum(map(len, self._carried))

    def _pieces(self) -> Iterator[Piece]:
        at = self._at.advance(self._carried).position
        self._tap.again()
        return self._source.pieces_of(byteblocks.blocks(self._tap.read), at)

    def _carry(self, raw: bytes) -> None:
        self._carried.append(raw)
        self._tap.used(len(raw))

    def _next(self) -> Iterator[Block]:
        """Yield the next block from what is waiting, or blocks of what is odd in it."""
        size = min(self._size, len(self._tap.waiting))
        body = bytes(self._tap.waiting[:size])
        last = self._tap.ended and size == len(self._tap.waiting)
        options = self._source.options
        layout = layout_of(body, delimiter=options.delimiter or ",", quotechar=options.quotechar, last=last)
        most, whole = self._rows_max(), True
        if layout is not None and len(layout.starts) > most:
            body, whole = body[: layout.starts[most]], False
            layout = layout_of(body, delimiter=options.delimiter or ",", quotechar=options.quotechar, last=False)
        block = None if layout is None else self._fast(body, layout)
        if block is not None:
            # Where the rows are the limit, the next block is about as long as this one.
            self._size = min(BLOCK_BYTES, self._size * 4 if whole else len(body) * 5 // 4)
            yield block
        elif size > ODD_BYTES:
            self._size = ODD_BYTES
        else:
            yield from self._odd(body)

    def _odd(self, body: bytes) -> Iterator[Block]:
        """Read row by row to the end of the record that the last line of ``body`` belongs to."""
        yield from self._one_by_one(self._pieces(), until=self._place + body.rfind(b"\n") + 1, used=self._tap.used)

    def _one_by_one(
        self, pieces: Iterator[Piece], *, until: int, used: Callable[[int], None] = lambda _count: None
    ) -> Iterator[Block]:
        entries: list[Entry] = []
        place = self._place
        carried_bytes = place - self._at.offset
        size = 0
        for piece in pieces:
            used(len(piece.raw))
            place += len(piece.raw)
            if isinstance(piece, Filler):
                self._carried.append(piece.raw)
                carried_bytes += len(piece.raw)
                if carried_bytes > CARRIED_BYTES_MAX:
                    if entries:
                        yield self._block(entries)
                        entries, size = [], 0
                    self._at, self._carried, carried_bytes = self._at.advance(self._carried), [], 0
                continue
            raw = b"".join((*self._carried, piece.raw)) if self._carried else piece.raw
            entries.append(Entry(raw, self._reader.read(piece)))
            self._carried, carried_bytes = [], 0
            size += len(raw)
            if len(entries) >= min(ROWS_MAX, self._rows_max()) or size >= BLOCK_BYTES:
                yield self._block(entries)
                entries, size = [], 0
            if place >= until:
                break
        if entries:
            yield self._block(entries)

    def _block(self, entries: Sequence[Entry]) -> Block:
        """Make a block of rows that were read one by one, or the last one of the bytes that are carried."""
        begin = self._at
        if entries:
            end = begin.advance(entry.raw for entry in entries)
        else:
            end, self._carried = begin.advance(self._carried), []
        self._at = end
        if self._columns is not None:
            self._check_end()
        chunk = Chunk(begin, tuple(entries), end)
        rows = [entry.row for entry in entries if isinstance(entry.row, Row)]
        return Block(
            begin=begin,
            end=end,
            source=pa.array([row.source for row in rows], pa.string()),
            event_id=pa.array([row.event_id for row in rows], pa.string()),
            amount_cents=pa.array([row.amount_cents for row in rows], pa.int64()),
            payload=pa.array([row.payload for row in rows], pa.string()),
            line=pa.array([row.line for row in rows], pa.int64()),
            fields=self._fields(rows),
            findings=tuple(entry.row for entry in entries if isinstance(entry.row, Finding)),
            chunk=lambda: chunk,
        )

    def _fields(self, rows: Sequence[Row]) -> pa.Table | None:
        if self._columns is None:
            return None
        names = self._source.columns or ()
        return pa.table({name: pa.array([row.fields[name] for row in rows], pa.string()) for name in names})

    def _fast(self, body: bytes, layout: Layout) -> Block | None:
        """Read the whole records of ``body`` as columns; None if pyarrow does not see what the layout says."""
        table = _table(body, layout, self._source)
        if table is None or table.num_rows != len(layout.starts) or self._columns is None:
            return None
        marked = _not_normal(body, layout)
        if marked is None:
            return None
        read = self._columns.read(table, marked)
        raw = body[: layout.end]
        begin = self._at
        whole = b"".join((*self._carried, raw)) if self._carried else raw
        lines = self._at.lines + self._feeds + 1 + layout.lines
        feeds = self._feeds + layout.feeds
        self._at, self._carried = begin.advance_counted(whole, feeds), []
        self._tap.used(layout.end)
        self._check_end()
        return self._made(table, read, layout, lines, raw, _Raw(self._source, self._reader, begin, whole, self._at))

    def _made(self, table: pa.Table, read: Read, layout: Layout, lines: np.ndarray, raw: bytes, kept: _Raw) -> Block:
        columns = {
            "source": read.source,
            "event_id": read.event_id,
            "amount_cents": read.amount_cents,
            "payload": read.payload,
        }
        findings: tuple[Finding, ...] = ()
        line = pa.array(lines)
        if read.marked.any():
            found = self._alone(table, np.flatnonzero(read.marked), layout, lines, raw)
            findings = tuple(row for row in found if isinstance(row, Finding))
            columns = _patched(columns, read.marked, found)
            if findings:
                keep = np.ones(table.num_rows, dtype=bool)
                keep[np.flatnonzero(read.marked)[[isinstance(row, Finding) for row in found]]] = False
                mask = pa.array(keep)
                columns = {name: array.filter(mask) for name, array in columns.items()}
                line, table = line.filter(mask), table.filter(mask)
        return Block(
            begin=kept.begin,
            end=kept.end,
            line=line,
            fields=table,
            findings=findings,
            chunk=kept.chunk,
            **columns,
        )

    def _alone(
        self, table: pa.Table, marked: np.ndarray, layout: Layout, lines: np.ndarray, raw: bytes
    ) -> list[Row | Finding]:
        """Read the marked rows one by one."""
        taken = table.take(pa.array(marked)).to_pylist()
        places = zip(marked.tolist(), taken, strict=True)
        return [
            self._reader.read(Record(int(lines[row]), raw[layout.starts[row] : layout.stops[row]], fields))
            for row, fields in places
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Raw:
    """The bytes of a block, to be read again row by row."""

    source: Input
    reader: RowReader
    begin: Cursor
    raw: bytes
    end: Cursor

    def chunk(self) -> Chunk:
        pieces = self.source.pieces_of(iter((byteblocks.Block(self.raw),)), self.begin.position)
        entries: list[Entry] = []
        carried: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, Filler):
                carried.append(piece.raw)
                continue
            entries.append(Entry(b"".join((*carried, piece.raw)), self.reader.read(piece)))
            carried = []
        return Chunk(self.begin, tuple(entries), self.end)


def _column_reader(source: Input, reader: RowReader) -> ColumnReader | None:
    """Return how the columns are read; None where rows have to be read one by one."""
    if source.format not in ("csv", "tsv") or source.options.encoding != "utf-8" or reader.definition.columns is None:
        return None
    columns = ColumnReader(reader)
    return columns if columns.needed <= set(source.columns or ()) else None


def _table(body: bytes, layout: Layout, source: Input) -> pa.Table | None:
    names = list(source.columns or ())
    options = source.options
    try:
        return pyarrow.csv.read_csv(
            pa.py_buffer(memoryview(body)[: layout.end]),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=layout.end + 1, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=options.delimiter or ",",
                quote_char=options.quotechar if layout.quoted else False,
                newlines_in_values=layout.breaks,
                ignore_empty_lines=False,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        ).combine_chunks()
    except pa.ArrowInvalid:
        return None


def _not_normal(body: bytes, layout: Layout) -> np.ndarray | None:
    """Mark the rows with other characters than ASCII if the block is not in normal form C; None if it is no UTF-8.

    Delimiters, quotes and line ends compose with nothing but a few marks that make the block look worse than it is.
    """
    marked = np.zeros(len(layout.starts), dtype=bool)
    if body.isascii():
        return marked
    try:
        text = body[: layout.end].decode()
    except UnicodeDecodeError:
        return None
    if not unicodedata.is_normalized("NFC", text):
        high = np.flatnonzero(np.frombuffer(body, dtype=np.uint8)[: layout.end] >= 0x80)
        marked[np.searchsorted(layout.starts, high, side="right") - 1] = True
    return marked


def _patched(columns: dict[str, pa.Array], marked: np.ndarray, found: Sequence[Row | Finding]) -> dict[str, pa.Array]:
    """Put what was read row by row in the place of the marked rows; findings leave anything there."""
    rows = [row if isinstance(row, Row) else None for row in found]
    mask = pa.array(marked)
    return {
        name: pc.replace_with_mask(
            array, mask, pa.array([getattr(row, name) if row else None for row in rows], array.type)
        )
        for name, array in columns.items()
    }
