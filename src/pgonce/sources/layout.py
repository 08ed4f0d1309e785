"""Find the records of a block of CSV with whole-array arithmetic, or say that the block has to be read line by line.

The answer is exact or None: blank lines, lone carriage returns, NUL, byte order marks, records that are too long, and
every quote that does not stand where RFC 4180 lets it stand give None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pgonce.sources.blocks import BOM, MAX_RECORD_BYTES

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int64]]
_LF, _CR = 10, 13


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the records of a block are. ``end`` is the byte behind the last whole one.

    ``starts`` and ``stops`` are the bytes of each record with its line end; ``lines`` the line feeds before each,
    ``feeds`` those of the block.
    ``quoted`` says whether a quote occurs, ``breaks`` whether a line feed stands inside of quotes.
    """

    end: int
    starts: Places
    stops: Places
    lines: Places
    feeds: int
    quoted: bool
    breaks: bool


def layout_of(body: bytes, *, delimiter: str, quotechar: str | None, last: bool) -> Layout | None:
    """Find the records of ``body``, which begins at a record; ``last`` says that the input ends with it."""
    data: Bytes = np.frombuffer(body, dtype=np.uint8)
    feeds = np.flatnonzero(data == _LF)
    quotes = np.flatnonzero(data == ord(quotechar)) if quotechar and quotechar.encode() in body else feeds[:0]
    inside = np.searchsorted(quotes, feeds) & 1 if len(quotes) else np.zeros(len(feeds), dtype=np.int64)
    outside = np.flatnonzero(inside == 0)
    ends = feeds[outside] + 1
    if last and (not len(ends) or ends[-1] < len(body)):
        ends = np.append(ends, len(body))
        outside = np.append(outside, len(feeds))
    if not len(ends):
        return None
    end = int(ends[-1])
    starts = np.concatenate(([0], ends[:-1]))
    quotes = quotes[: np.searchsorted(quotes, end)]
    if _has_oddities(body, data, end) or _has_blanks(data, starts, ends):
        return None
    if len(quotes) and not _well_quoted(data, quotes, end, ord(delimiter)):
        return None
    lines = np.concatenate(([0], outside[:-1] + 1))
    count = int(np.searchsorted(feeds, end))
    breaks = bool(inside[:count].any())
    return Layout(end, starts, ends, lines, count, bool(len(quotes)), breaks)


def _has_oddities(body: bytes, data: Bytes, end: int) -> bool:
    if body.find(b"\0", 0, end) >= 0 or (not body.isascii() and body.find(BOM, 0, end) >= 0):
        return True
    if body.find(b"\r", 0, end) < 0:
        return False
    returns = np.flatnonzero(data[:end] == _CR)
    return bool(returns[-1] + 1 == end or (data[returns + 1] != _LF).any())


def _has_blanks(data: Bytes, starts: Places, ends: Places) -> bool:
    sizes = ends - starts
    if sizes.max() > MAX_RECORD_BYTES:
        return True
    short = starts[sizes <= 2]  # a line end alone, of one byte or of two
    return bool(len(short) and np.isin(data[short], (_LF, _CR)).any())


def _well_quoted(data: Bytes, quotes: Places, end: int, delimiter: int) -> bool:
    """Quotes open and close in turn. One opens at the start of a field, and closes at its end; or both are a pair."""
    if len(quotes) & 1:
        return False
    opening, closing = quotes[0::2], quotes[1::2]
    paired = closing[:-1] + 1 == opening[1:]
    before = data[opening - 1]
    opens = (before == delimiter) | (before == _LF) | (opening == 0)
    opens[1:] |= paired
    after = data[np.minimum(closing + 1, end - 1)]
    closes = (after == delimiter) | (after == _LF) | (after == _CR) | (closing + 1 == end)
    closes[:-1] |= paired
    return bool(opens.all() and closes.all())
