"""From an open input to chunks of rows, read by the job's definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec

from pgonce.engine.batch import Columns
from pgonce.model.chunk import Chunk, Entry
from pgonce.model.cursor import Cursor
from pgonce.model.record import Filler
from pgonce.model.row import RowReader
from pgonce.sources import Input

# Bytes without a row (a header, blank lines) are carried with the row that follows; a stretch of them longer than this
# ends the chunk before it, so that memory stays bounded.
CARRIED_BYTES_MAX = 1 << 20

COLUMNAR = ("csv", "tsv")
"""What is read as columns; other formats are read row by row in any case."""

# Wide rows end a chunk early: its rows are in memory, and once more on their way to the server.
CHUNK_BYTES_MAX = 8 << 20


def chunks(source: Input, reader: RowReader, begin: Cursor, rows_max: Callable[[], int]) -> Iterator[Chunk]:
    """Yield the input's rows from a place on, in chunks of at most ``rows_max()`` rows and about 8 MiB; the last ends
    at the end.

    An input with nothing left still yields one chunk without rows, so that its end is settled too. A chunk always ends
    behind a row or at the end of the input; bytes without a row belong to the row that follows them.
    Safe to re-run: it only reads.
    """
    at, entries, entry_bytes, carried, carried_bytes, limit = begin, list[Entry](), 0, list[bytes](), 0, rows_max()
    for piece in source.pieces(begin.position):
        if isinstance(piece, Filler):
            carried.append(piece.raw)
            carried_bytes += len(piece.raw)
            if carried_bytes <= CARRIED_BYTES_MAX:
                continue
        else:
            entries.append(Entry(b"".join((*carried, piece.raw)) if carried else piece.raw, reader.read(piece)))
            entry_bytes += carried_bytes + len(piece.raw)
            carried, carried_bytes = [], 0
            if len(entries) < limit and entry_bytes < CHUNK_BYTES_MAX:
                continue
        if entries:
            chunk = _chunk(at, entries, ())
            yield chunk
            at, entries, entry_bytes, limit = chunk.end, [], 0, rows_max()
        if carried:
            at, carried, carried_bytes = at.advance(carried), [], 0
    yield _chunk(at, entries, carried)


def columns(source: Input, reader: RowReader, begin: Cursor, rows_max: Callable[[], int]) -> Iterator[Chunk | Columns]:
    """Yield the same rows as columns, where the input has them and pyarrow is there, else as ``chunks`` does.

    Safe to re-run: it only reads.
    """
    if source.format not in COLUMNAR or not _has_arrow():
        yield from chunks(source, reader, begin, rows_max)
        return
    from pgonce.engine.columnar import BlockColumns
    from pgonce.sources.columns import column_blocks

    for block in column_blocks(source, reader, begin, rows_max):
        yield BlockColumns(block)


@cache
def _has_arrow() -> bool:
    return all(find_spec(name) is not None for name in ("numpy", "pyarrow"))


def _chunk(begin: Cursor, entries: list[Entry], tail: Sequence[bytes]) -> Chunk:
    end = begin.advance(entry.raw for entry in entries)
    return Chunk(begin, tuple(entries), end.advance(tail) if tail else end)
