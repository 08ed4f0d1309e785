"""Skip a record that cannot be taken, without mistaking a part of it for a row and without holding it in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgonce.model.record import Filler

# The unit in which a skipped record is passed on: small beside a block, large beside a line.
SKIP_BYTES = 64 * 1024

_EDGE, _PLAIN, _QUOTED = range(3)


class QuoteScan:
    """Tell whether a broken CSV record may be over at the end of a line.

    A broken record can be understood in more than one way, and text inside quotes may look exactly like a row with
    money in it. So it is over only where two ways agree: the quotes seen so far are even in number, and a reader that
    forgives text after a closing quote is not inside of a quoted field.

    What stays open: where both agree, the writer may still have meant a quote that it forgot to double. Nobody can
    tell that from the bytes.
    """

    def __init__(self, delimiter: str, quotechar: str | None) -> None:
        self._quote = None if quotechar is None else quotechar.encode("ascii")
        self._ends = re.compile(b"[\n" + re.escape(delimiter.encode("ascii")) + b"]")
        self._odd = False
        self._state = _EDGE

    @property
    def settled(self) -> bool:
        """Whether no quote is open, in either way of reading."""
        return not self._odd and self._state != _QUOTED

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the record, cut anywhere."""
        quote = self._quote
        if quote is None:
            return
        self._odd ^= bool(data.count(quote) & 1)
        at, end, state = 0, len(data), self._state
        while at < end:
            if state == _QUOTED:
                at = data.find(quote, at) + 1
                if not at:
                    break
                state = _EDGE
            elif state == _PLAIN:
                found = self._ends.search(data, at)
                if found is None:
                    break
                at, state = found.end(), _EDGE
            else:
                byte = data[at : at + 1]
                at += 1
                if byte == quote:
                    state = _QUOTED
                elif not self._ends.match(byte):
                    state = _PLAIN
        self._state = state


class Skipped:
    """The bytes of a record that is being skipped: passed on in parts, the last part kept for the `Malformed`.

    The cuts depend on the record's own bytes only. They avoid the place right behind a line feed, so that a position
    inside of a skipped record can be told from one between two records.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self.lines = 0

    def add(self, data: bytes) -> Iterator[Filler]:
        """Take the next bytes of the record and yield what need not be held any longer."""
        self._held += data
        self.lines += data.count(b"\n")
        while len(self._held) > SKIP_BYTES:
            cut = len(self._held[:SKIP_BYTES].rstrip(b"\n")) or SKIP_BYTES
            yield Filler(bytes(self._held[:cut]))
            del self._held[:cut]

    def rest(self) -> bytes:
        """Return the last part, never empty once something was added."""
        return bytes(self._held)
