"""What a client sends, cut into segments that end at boundaries. Pure: bytes in, values out."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgonce.crashtest.wire import LOOKED_AT_BYTES_MAX, STATEMENT_CHARACTERS_MAX, Kind, Splitter, normalised
from pgonce.errors import ConfigurationError
from pgonce.model.sqltext import split_statements

# Messages of one extended unit wait for their Sync, so that a fault can come before all of them. A pipeline that is
# longer goes out in part, and a fault at its Sync then comes after its first statements were sent.
HELD_BYTES_MAX = 64 << 20

# A program says the same statements again and again: looking one up takes a tenth of the time. Long ones hold values.
REMEMBERED_MAX, REMEMBERED_BYTES_MAX = 1_000, 2_000

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of the client to be forwarded together.

    ``kind`` names the boundary that ends them, None if the server does not act on them alone. ``statement`` is what
    the unit runs, normalised. ``ready`` is how many ReadyForQuery answer it, ``executes`` how many Execute it holds.
    ``is_partial``: earlier messages of the same unit were already forwarded. ``ends_copy``: it holds a CopyDone.
    ``statements`` is how many statements the text of a simple Query holds.
    """

    data: bytes
    kind: Kind | None = None
    statement: str = ""
    ready: int = 0
    executes: int = 0
    is_partial: bool = False
    ends_copy: bool = False
    statements: int = 1


_ALONE = {
    ord("F"): (Kind.FUNCTION, 1),
    ord("f"): (Kind.COPY_FAIL, 0),
    ord("c"): (Kind.COPY_DONE, 0),
    ord("X"): (Kind.TERMINATE, 0),
}
_OF_UNIT = frozenset(b"PBDECS")
_QUERY, _FLUSH, _SYNC, _EXECUTE = b"QHSE"
_NEVER_PASSED_OVER = _OF_UNIT | _ALONE.keys() | {_QUERY, _FLUSH}


@dataclass(slots=True)
class ClientStream:
    """Follow what a client sends after its startup packet, and cut it into segments that end at boundaries.

    Parse, Bind, Describe, Execute and Sync that belong together are one segment, ending at the Sync. With
    ``each_execute`` every Execute ends one too; with ``pipelined`` every Execute that no Sync follows at once.
    """

    each_execute: bool = False
    pipelined: bool = False
    _splitter: Splitter = field(default_factory=lambda: Splitter(streamed=b"d"))
    _held: bytearray = field(default_factory=bytearray)
    _texts: list[str] = field(default_factory=list)
    _parsed: str = ""
    _executes: int = 0
    _is_partial: bool = False
    _is_execute_last: bool = False
    is_extended: bool = False
    _ends_copy: bool = False
    _statements: dict[bytes, str] = field(default_factory=dict)
    _portals: dict[bytes, str] = field(default_factory=dict)

    def feed(self, data: bytes) -> Iterator[Segment]:
        """Take the next bytes and give the segments that are complete; the iterator raises WireError."""
        is_alone = data[:1] == b"Q" and len(data) >= 5 and _LENGTH.unpack_from(data, 1)[0] == len(data) - 1
        if is_alone and not self._held and not self._is_execute_last and self._splitter.is_at_rest:
            self.is_extended = False
            return iter((_query(data),))
        return self._cut(data)

    def _cut(self, data: bytes) -> Iterator[Segment]:
        buffer, spans = self._splitter.feed(data)
        plain = 0
        for tag, start, end in spans:
            is_copy_end = self.is_extended and tag in b"cf"
            if tag not in _NEVER_PASSED_OVER and not self._held:
                continue
            if plain < start:
                yield Segment(buffer[plain:start])
            plain = end
            piece = buffer[start:end]
            if self._is_execute_last and tag != _SYNC:
                yield self._unit(Kind.EXECUTE)
            self._is_execute_last = self.pipelined and tag == _EXECUTE
            if tag == _QUERY or (tag in _ALONE and not is_copy_end):
                yield from self._release()
                self.is_extended = False
                yield _query(piece) if tag == _QUERY else _alone(tag, piece)
                continue
            self._hold(tag, piece, is_copy_end=is_copy_end)
            if tag == _SYNC:
                yield self._unit(Kind.SYNC)
            elif tag == _EXECUTE and self.each_execute:
                yield self._unit(Kind.EXECUTE)
            elif tag == _FLUSH or len(self._held) > HELD_BYTES_MAX:
                yield from self._release()
        if plain < len(buffer):
            yield Segment(buffer[plain:])

    def _hold(self, tag: int, piece: bytes, *, is_copy_end: bool) -> None:
        self._held += piece
        self.is_extended = True
        self._ends_copy = self._ends_copy or (is_copy_end and piece[:1] == b"c")
        if tag == ord("P"):
            name, text = _two_strings(piece)
            self._parsed = self._statements[name] = _normalised(text)
        elif tag == ord("B"):
            portal, name = _two_strings(piece)
            self._portals[portal] = self._statements.get(name, "")
        elif tag == _EXECUTE:
            self._texts.append(self._portals.get(piece[5:].split(b"\0", 1)[0], ""))
            self._executes += 1
        elif tag == ord("C"):
            known = self._statements if piece[5:6] == b"S" else self._portals
            known.pop(piece[6:-1], None)

    def _release(self) -> Iterator[Segment]:
        """Let go of a unit that is not finished: the server will see its first part before any fault."""
        if self._held:
            yield Segment(bytes(self._held), executes=self._executes, is_partial=self._is_partial)
            self._held.clear()
            self._executes = 0
            self._is_partial = True

    def _unit(self, kind: Kind) -> Segment:
        text = "; ".join(self._texts) or (f"parse {self._parsed}" if self._parsed else "")
        segment = Segment(
            bytes(self._held),
            kind,
            text[:STATEMENT_CHARACTERS_MAX],
            ready=1 if kind is Kind.SYNC else 0,
            executes=self._executes,
            is_partial=self._is_partial,
            ends_copy=self._ends_copy,
        )
        self._held.clear()
        self._executes = 0
        self._is_partial = kind is Kind.EXECUTE
        if kind is Kind.SYNC:
            self._texts.clear()
            self._parsed = ""
            self._ends_copy = False
        return segment


def _alone(tag: int, piece: bytes) -> Segment:
    kind, ready = _ALONE[tag]
    return Segment(piece, kind, ready=ready, ends_copy=kind is Kind.COPY_DONE)


def _query(piece: bytes) -> Segment:
    """Return the segment of a simple Query."""
    return remembered_query(piece) if len(piece) <= REMEMBERED_BYTES_MAX else _new_query(piece)


def _new_query(piece: bytes) -> Segment:
    text = normalised(piece[5 : 5 + LOOKED_AT_BYTES_MAX].rstrip(b"\0"))
    return Segment(piece, Kind.QUERY, text, ready=1, statements=_count_statements(piece))


def _normalised(text: bytes) -> str:
    return remembered_text(text) if len(text) <= REMEMBERED_BYTES_MAX else normalised(text)


remembered_query = functools.lru_cache(REMEMBERED_MAX)(_new_query)
remembered_text = functools.lru_cache(REMEMBERED_MAX)(normalised)


def _count_statements(query: bytes) -> int:
    """Count the statements of a simple Query; the text is only looked at where it can be more than one."""
    body = query[5:].rstrip(b"\0; \t\r\n")
    if b";" not in body:
        return 1
    try:
        return max(1, len(split_statements(body.decode("utf-8", "replace"))))
    except ConfigurationError:
        return 1


def _two_strings(piece: bytes) -> tuple[bytes, bytes]:
    """Return the first two strings in the body of a frame; the second may be cut short."""
    first, _, rest = piece[5 : 5 + LOOKED_AT_BYTES_MAX].partition(b"\0")
    return first, rest.partition(b"\0")[0]
