"""From an open input to chunks of rows, read by the job's definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pgonce.model.chunk import Chunk, Entry
from pgonce.model.cursor import Cursor
from pgonce.model.record import Filler
from pgonce.model.row import RowReader
from pgonce.sources import Input

# Bytes without a row (a header, blank lines) are carried with the row that follows; a stretch of them longer than this
# ends the chunk before it, so that memory stays bounded.
CARRIED_BYTES_MAX = 1 << 20


def chunks(source: Input, reader: RowReader, begin: Cursor, rows_max: Callable[[], int]) -> Iterator[Chunk]:
    """Yield the input's rows from a place on, in chunks of at most ``rows_max()`` rows; the last one ends at the end.

    An input with nothing left still yields one chunk without rows, so that its end is settled too.
    Safe to re-run: it only reads.
    """
    at, entries, carried, limit = begin, list[Entry](), b"", rows_max()
    for piece in source.pieces(begin.position):
        if isinstance(piece, Filler):
            carried += piece.raw
            if len(carried) > CARRIED_BYTES_MAX:
                if entries:
                    chunk = _chunk(at, entries, b"")
                    yield chunk
                    at, entries = chunk.end, []
                at, carried = at.advance(carried), b""
            continue
        entries.append(Entry(carried + piece.raw if carried else piece.raw, reader.read(piece)))
        carried = b""
        if len(entries) >= limit:
            chunk = _chunk(at, entries, b"")
            yield chunk
            at, entries, limit = chunk.end, [], rows_max()
    yield _chunk(at, entries, carried)


def _chunk(begin: Cursor, entries: list[Entry], tail: bytes) -> Chunk:
    end = begin.advance(entry.raw for entry in entries)
    return Chunk(begin, tuple(entries), end.advance(tail) if tail else end)


def new_columns(source: Input, reader: RowReader) -> list[str]:
    """List the columns of an input with a header that the job neither compares nor ignores."""
    return reader.definition.unknown_in(source.columns or ())
