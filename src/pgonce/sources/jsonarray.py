"""Cut a JSON array into its elements, in constant memory, with every byte accounted for.

An array that is broken somewhere is not read behind that place: text inside of a string that was never closed may look
exactly like an element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pgonce.model.record import Filler, Malformed, Piece
from pgonce.sources.blocks import BOM, MAX_RECORD_BYTES, Block
from pgonce.sources.jsontext import NotARecord
from pgonce.sources.skipping import SKIP_BYTES, Skipped

_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'["\\]')
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")


class ArrayReader:
    """One reading of an array from its first byte. The number of an element counts from 1.

    ``piece_of`` makes a piece of an element's bytes and its number; it raises NotARecord if they are no JSON.
    """

    def __init__(self, blocks: Iterator[Block], piece_of: Callable[[bytes, int], Piece]) -> None:
        self._blocks = blocks
        self._piece_of = piece_of
        self._buffer = b""
        self._at = 0  # before it, everything was given out
        self._end = 0  # of the element that was scanned last
        self._skipped: Skipped | None = None  # the element that was scanned last, if it is too long
        self._number = 1
        self._over = False  # the input ended in a gap, whose bytes were not given out

    def pieces(self) -> Iterator[Piece]:
        """Yield the elements, and fillers for what stands between them."""
        self._fill()
        yield from self._gap(len(BOM) if self._buffer.startswith(BOM) else 0, b"[")
        if not self._over and self._mark() == b"]":
            yield from self._behind()
            return
        while not self._over and self._mark() not in b",]":
            yield from self._scan()
            try:
                yield from self._element()
            except NotARecord as broken:
                yield from self._give_up(str(broken))
                return
            self._number += 1
            if self._mark() == b"]":
                yield from self._behind()
                return
            if not self._mark():
                return
            yield from self._gap(0, b",")
        yield from self._give_up("the array ends without ]" if self._over else "an element of the array is missing")

    def _element(self) -> Iterator[Piece]:
        raw = self._buffer[self._at : self._end]
        if self._skipped is not None:
            yield from self._skipped.add(raw)
            piece: Piece = self._malformed(self._skipped.rest(), f"the event is longer than {MAX_RECORD_BYTES} bytes")
        else:
            piece = self._piece_of(raw, self._number)
            if self._end == len(self._buffer):
                piece = self._malformed(raw, "the array ends behind it without ]; was the file written completely?")
        self._at = self._end
        yield piece

    def _scan(self) -> Iterator[Filler]:
        """Find the end of the element that begins here; yield what need not be kept of one that is too long."""
        at, depth, inside = self._at, 0, False
        self._skipped = None
        while True:
            found = (_INSIDE if inside else _OUTSIDE).search(self._buffer, at)
            if found is None or (found.group() == b"\\" and found.end() == len(self._buffer)):
                at = found.start() if found else len(self._buffer)
                if self._skipped is not None or at - self._at > MAX_RECORD_BYTES:
                    self._skipped = self._skipped or Skipped()
                    yield from self._skipped.add(self._buffer[self._at : at])
                    self._at = at
                before = self._at
                if not self._fill():
                    self._end = len(self._buffer)
                    return
                at -= before
                continue
            mark, at = found.group(), found.end()
            if inside:
                at += mark == b"\\"
                inside = mark == b"\\"
            elif mark == b'"':
                inside = True
            elif mark in b"[{":
                depth += 1
            elif depth == 0 and mark in b",]":
                self._end = found.start()
                if self._end - self._at > MAX_RECORD_BYTES:
                    self._skipped = self._skipped or Skipped()
                return
            elif mark in b"]}":
                depth -= 1

    def _gap(self, skip: int, mark: bytes) -> Iterator[Filler]:
        """Pass over ``skip`` bytes, blanks, the mark, and blanks; what ends the input is left for who gives up."""
        at = self._at + skip
        for expected in (mark, b""):
            while (found := _NOT_BLANK.search(self._buffer, at)) is None:
                at = max(at, len(self._buffer))
                if at - self._at > SKIP_BYTES:
                    yield Filler(self._buffer[self._at : at - 1])
                    self._at = at - 1
                before = self._at
                if not self._fill():
                    self._over = True
                    return
                at -= before
            at = found.start() + len(expected)
        yield Filler(self._buffer[self._at : at])
        self._at = at

    def _behind(self) -> Iterator[Piece]:
        """Pass over the closing bracket; after it nothing may come."""
        yield from self._gap(0, b"]")
        if self._over:
            yield Filler(self._buffer[self._at :])
        else:
            yield from self._give_up("text follows behind the array")

    def _give_up(self, reason: str) -> Iterator[Piece]:
        """Skip the rest of the input."""
        skipped = self._skipped or Skipped()
        yield from skipped.add(self._buffer[self._at :])
        for block in self._blocks:
            yield from skipped.add(block.body)
        yield self._malformed(skipped.rest(), f"{reason}; nothing from there on was taken")

    def _malformed(self, raw: bytes, reason: str) -> Malformed:
        return Malformed(self._number, raw, reason)

    def _mark(self) -> bytes:
        return self._buffer[self._at : self._at + 1]

    def _fill(self) -> bool:
        """Forget what was given out, and read more behind the rest."""
        block = next(self._blocks, None)
        if block is None:
            if self._at:
                self._buffer, self._at = self._buffer[self._at :], 0
            return False
        self._buffer, self._at = self._buffer[self._at :] + block.body, 0
        return True
