"""PostgreSQL's frontend/backend protocol 3, as far as a fault has to understand it. Pure: bytes in, values out.

Source: PostgreSQL's manual, "Frontend/Backend Protocol", chapters "Message Flow" and "Message Formats".
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# The server itself refuses startup packets above this size (MAX_STARTUP_PACKET_LENGTH).
STARTUP_BYTES_MAX = 10_000

# The server's own limit for one message is 1 GiB; a longer one means that we read bytes that are not a header.
FRAME_BYTES_MAX = 1 << 30

# Frames up to this size are handed over whole, so that those we look into (errors, statuses) always are, while one
# value of a gigabyte streams through in pieces.
WHOLE_BYTES_MAX = 1 << 20

# Messages of one extended unit wait for their Sync, so that a fault can come before all of them. A pipeline that is
# longer goes out in part, and a fault at its Sync then comes after its first statements were sent.
HELD_BYTES_MAX = 64 << 20

# Enough of a statement to recognise it in a log of boundaries.
STATEMENT_CHARACTERS_MAX = 200

# Comments in front of a statement are skipped within this many bytes; beyond it lies data, not the statement's head.
_LOOKED_AT_BYTES_MAX = 4_096

_SSL_REQUEST, _GSSENC_REQUEST, _CANCEL_REQUEST = 80_877_103, 80_877_104, 80_877_102
_LENGTH = struct.Struct("!I")
_LEADING_COMMENT = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))+", re.DOTALL)


class WireError(Exception):
    """The bytes are not protocol 3. Look at what is talking on this connection."""


class Packet(enum.Enum):
    """What a client's first, untyped packet asks for."""

    SSL = "ssl"
    GSSENC = "gssenc"
    CANCEL = "cancel"
    STARTUP = "startup"


class Kind(enum.Enum):
    """The client messages on which the server acts."""

    STARTUP = "startup"
    QUERY = "query"
    FUNCTION = "function"
    EXECUTE = "execute"
    SYNC = "sync"
    COPY_DONE = "copy done"
    COPY_FAIL = "copy fail"
    TERMINATE = "terminate"


class Span(NamedTuple):
    """One frame, or a piece of a long one, inside a buffer: its type byte, where it starts and ends.

    ``tag`` is 0 for the later pieces of a frame that is longer than `WHOLE_BYTES_MAX`.
    """

    tag: int
    start: int
    end: int


def packet_length(head: bytes) -> int:
    """Return the length in bytes of a startup packet from its first four; raises WireError for an impossible one."""
    length: int = _LENGTH.unpack_from(head)[0]
    if not 8 <= length <= STARTUP_BYTES_MAX:
        raise WireError(f"a connection began with a packet of {length} bytes, which no PostgreSQL client sends")
    return length


def packet_kind(packet: bytes) -> Packet:
    """Say what a whole startup packet asks for."""
    code = _LENGTH.unpack_from(packet, 4)[0]
    known = {_SSL_REQUEST: Packet.SSL, _GSSENC_REQUEST: Packet.GSSENC, _CANCEL_REQUEST: Packet.CANCEL}
    return known.get(code, Packet.STARTUP)


def startup_parameters(packet: bytes) -> dict[str, str]:
    """Return the parameters (user, database, application_name ...) of a StartupMessage."""
    fields = packet[8:].split(b"\0")
    texts = [item.decode("utf-8", "replace") for item in fields]
    return {name: value for name, value in zip(texts[::2], texts[1::2], strict=False) if name}


def startup(parameters: Mapping[str, str]) -> bytes:
    """Build a StartupMessage of protocol 3.0."""
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return _LENGTH.pack(len(body) + 8) + _LENGTH.pack(3 << 16) + body


def frame(tag: bytes, body: bytes = b"") -> bytes:
    """Build one typed frame."""
    return tag + _LENGTH.pack(len(body) + 4) + body


def query(statement: str) -> bytes:
    """Build a simple Query."""
    return frame(b"Q", statement.encode() + b"\0")


def extended(statement: str) -> bytes:
    """Build Parse, Bind, Execute and Sync of one statement without parameters: exactly one ReadyForQuery answers it."""
    return (
        frame(b"P", b"\0" + statement.encode() + b"\0\0\0")
        + frame(b"B", b"\0\0" + b"\0\0" * 3)
        + frame(b"E", b"\0" + b"\0\0\0\0")
        + frame(b"S")
    )


def error_response(sqlstate: str, message: str, *, severity: str = "ERROR") -> bytes:
    """Build an ErrorResponse with the fields that every client reads."""
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": message}
    return frame(b"E", b"".join(f"{key}{value}\0".encode() for key, value in fields.items()) + b"\0")


def error_fields(body: bytes) -> dict[str, str]:
    """Return the fields of an ErrorResponse's or NoticeResponse's body by their one-letter codes."""
    return {part[:1].decode(): part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}


def ready_for_query(status: str) -> bytes:
    """Build a ReadyForQuery: status ``I`` idle, ``T`` in a transaction, ``E`` in a failed one."""
    return frame(b"Z", status.encode())


def normalised(statement: bytes) -> str:
    """Give a statement on one line: leading comments left out, white space collapsed, shortened."""
    text = statement[:_LOOKED_AT_BYTES_MAX].decode("utf-8", "replace")
    comment = _LEADING_COMMENT.match(text)
    return " ".join(text[comment.end() if comment else 0 :].split())[:STATEMENT_CHARACTERS_MAX]


class Splitter:
    """Split a stream of typed frames that arrives in pieces of any size.

    ``streamed`` are the types whose long frames may be given in pieces; None means every type.
    """

    __slots__ = ("_needed", "_skip", "_streamed", "_tail")

    def __init__(self, streamed: bytes | None = None) -> None:
        self._streamed = streamed
        self._tail = bytearray()
        self._needed = 0
        self._skip = 0

    def feed(self, data: bytes) -> tuple[bytes, list[Span]]:
        """Take the next bytes; return what is complete so far as one buffer, and the spans that fill it exactly.

        The start of a frame that is not yet whole is kept for the next call. Raises WireError.
        """
        buffer = data
        if self._tail:
            self._tail += data
            if len(self._tail) < self._needed:
                return b"", []
            buffer = bytes(self._tail)
            self._tail.clear()
        size = len(buffer)
        at = min(self._skip, size)
        spans = [Span(0, 0, at)] if at else []
        self._skip -= at
        self._needed = 5
        while at + 5 <= size:
            end = at + 1 + _LENGTH.unpack_from(buffer, at + 1)[0]
            if not 5 <= end - at <= FRAME_BYTES_MAX:
                raise WireError(f"a message of type {buffer[at : at + 1]!r} claims to have {end - at} bytes")
            if end > size:
                if end - at <= WHOLE_BYTES_MAX or not self._may_stream(buffer[at]):
                    self._needed = end - at
                    break
                self._skip, end = end - size, size
            spans.append(Span(buffer[at], at, end))
            at = end
        if at == size:
            return buffer, spans
        self._tail += buffer[at:]
        return buffer[:at], spans

    def _may_stream(self, tag: int) -> bool:
        return self._streamed is None or tag in self._streamed


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of the client to be forwarded together.

    ``kind`` names the boundary that ends them, None if the server does not act on them alone. ``statement`` is what
    the unit runs, normalised. ``ready`` is how many ReadyForQuery answer it, ``executes`` how many Execute it holds.
    ``is_partial``: earlier messages of the same unit were already forwarded. ``ends_copy``: it holds a CopyDone.
    """

    data: bytes
    kind: Kind | None = None
    statement: str = ""
    ready: int = 0
    executes: int = 0
    is_partial: bool = False
    ends_copy: bool = False


_ALONE = {
    ord("Q"): (Kind.QUERY, 1),
    ord("F"): (Kind.FUNCTION, 1),
    ord("f"): (Kind.COPY_FAIL, 0),
    ord("c"): (Kind.COPY_DONE, 0),
    ord("X"): (Kind.TERMINATE, 0),
}
_OF_UNIT = frozenset(b"PBDECS")
_FLUSH, _SYNC, _EXECUTE = ord("H"), ord("S"), ord("E")


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
        """Take the next bytes and yield the segments that are complete; raises WireError."""
        buffer, spans = self._splitter.feed(data)
        plain = 0
        for tag, start, end in spans:
            is_copy_end = self.is_extended and tag in b"cf"
            if tag not in _OF_UNIT and tag not in _ALONE and tag != _FLUSH and not self._held:
                continue
            if plain < start:
                yield Segment(buffer[plain:start])
            plain = end
            piece = buffer[start:end]
            if self._is_execute_last and tag != _SYNC:
                yield self._unit(Kind.EXECUTE)
            self._is_execute_last = self.pipelined and tag == _EXECUTE
            if tag in _ALONE and not is_copy_end:
                yield from self._release()
                yield self._alone(tag, piece)
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

    def _alone(self, tag: int, piece: bytes) -> Segment:
        kind, ready = _ALONE[tag]
        self.is_extended = False
        statement = normalised(piece[5 : 5 + _LOOKED_AT_BYTES_MAX].rstrip(b"\0")) if kind is Kind.QUERY else ""
        return Segment(piece, kind, statement, ready, ends_copy=kind is Kind.COPY_DONE)

    def _hold(self, tag: int, piece: bytes, *, is_copy_end: bool) -> None:
        self._held += piece
        self.is_extended = True
        self._ends_copy = self._ends_copy or (is_copy_end and piece[:1] == b"c")
        if tag == ord("P"):
            name, text = _two_strings(piece)
            self._parsed = self._statements[name] = normalised(text)
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


def _two_strings(piece: bytes) -> tuple[bytes, bytes]:
    """Return the first two strings in the body of a frame; the second may be cut short."""
    first, _, rest = piece[5 : 5 + _LOOKED_AT_BYTES_MAX].partition(b"\0")
    return first, rest.partition(b"\0")[0]
