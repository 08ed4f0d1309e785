"""PostgreSQL's frontend/backend protocol 3, as far as a fault has to understand it. Pure: bytes in, values out.

Source: PostgreSQL's manual, "Frontend/Backend Protocol", chapters "Message Flow" and "Message Formats".
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Mapping

# The server itself refuses startup packets above this size (MAX_STARTUP_PACKET_LENGTH).
STARTUP_BYTES_MAX = 10_000

# The server's own limit for one message is 1 GiB; a longer one means that we read bytes that are not a header.
FRAME_BYTES_MAX = 1 << 30

# Frames up to this size are handed over whole, so that those we look into (errors, statuses) always are, while one
# value of a gigabyte streams through in pieces.
WHOLE_BYTES_MAX = 1 << 20

# Enough of a statement to recognise it in a log of boundaries.
STATEMENT_CHARACTERS_MAX = 200

# Comments in front of a statement are skipped within this many bytes; beyond it lies data, not the statement's head.
LOOKED_AT_BYTES_MAX = 4_096

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


# One frame, or a piece of a long one, inside a buffer: its type byte, where it starts and ends. The type is 0 for the
# later pieces of a frame that is longer than `WHOLE_BYTES_MAX`. A bare tuple: there are several for every statement.
Span = tuple[int, int, int]


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
    text = statement[:LOOKED_AT_BYTES_MAX].decode("utf-8", "replace")
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

    @property
    def is_at_rest(self) -> bool:
        """Say whether the next byte begins a frame."""
        return not self._tail and not self._skip

    def feed(self, data: bytes, *, only: frozenset[int] | None = None) -> tuple[bytes, list[Span]]:
        """Take the next bytes; return what is complete so far as one buffer, and the spans that fill it exactly.

        With ``only``, spans of other types are left out. The start of a frame that is not yet whole is kept for the
        next call. Raises WireError.
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
        spans = [(0, 0, at)] if at and only is None else []
        self._skip -= at
        self._needed = 5
        length_at = _LENGTH.unpack_from
        while at + 5 <= size:
            end = at + 1 + length_at(buffer, at + 1)[0]
            if not 5 <= end - at <= FRAME_BYTES_MAX:
                raise WireError(f"a message of type {buffer[at : at + 1]!r} claims to have {end - at} bytes")
            tag = buffer[at]
            if end > size:
                if end - at <= WHOLE_BYTES_MAX or not self._may_stream(tag):
                    self._needed = end - at
                    break
                self._skip, end = end - size, size
            if only is None or tag in only:
                spans.append((tag, at, end))
            at = end
        if at == size:
            return buffer, spans
        self._tail += buffer[at:]
        return buffer[:at], spans

    def _may_stream(self, tag: int) -> bool:
        return self._streamed is None or tag in self._streamed
