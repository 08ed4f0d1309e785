"""Read bytes as an input, and see what came out; with small limits if a test wants to meet them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from pgonce.model.cursor import Cursor, Position
from pgonce.model.record import Filler, Malformed, Piece, Record
from pgonce.sources import Input, ReadingOptions, blocks, cloudevents, delimited, jsonarray, ndjson, skipping


@contextmanager
def content(data: bytes, name: str = "given.csv", **options: object) -> Iterator[Input]:
    """Give ``data`` as an input called ``name``."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield Input(file.fileno(), name, ReadingOptions(**options))


@contextmanager
def limits(*, block: int = 256, record: int = 1024, skip: int = 64) -> Iterator[None]:
    """Set the limits of the readers low, so that small inputs reach them."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(blocks, "BLOCK_BYTES", block))
        for module in (skipping, jsonarray):
            stack.enter_context(patch.object(module, "SKIP_BYTES", skip))
        for module in (blocks, cloudevents, delimited, jsonarray, ndjson):
            stack.enter_context(patch.object(module, "MAX_RECORD_BYTES", record))
        yield


def read(data: bytes, name: str = "given.csv", **options: object) -> list[Piece]:
    """Read all pieces, checking that no byte was lost or given twice."""
    with content(data, name, **options) as source:
        pieces = list(source.pieces())
    assert b"".join(piece.raw for piece in pieces) == data
    return pieces


def records(pieces: list[Piece]) -> list[dict[str, object]]:
    """The fields of the records among the pieces."""
    return [dict(piece.fields) for piece in pieces if isinstance(piece, Record)]


def malformed(pieces: list[Piece]) -> list[tuple[int, str]]:
    """Line and reason of what could not be read among the pieces."""
    return [(piece.line, piece.reason) for piece in pieces if isinstance(piece, Malformed)]


def positions(pieces: list[Piece]) -> list[Position]:
    """The position before each piece, and the one behind the last."""
    cursor = Cursor.start()
    found = [cursor.position]
    for piece in pieces:
        cursor = cursor.advance(piece.raw)
        found.append(cursor.position)
    return found


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same pieces with each run of fillers as one, and the fillers of a skipped record put to its `Malformed`."""
    out: list[Piece] = []
    held = b""
    for piece in pieces:
        if isinstance(piece, Filler):
            held += piece.raw
        elif isinstance(piece, Malformed):
            out.append(Malformed(piece.line, held + piece.raw, piece.reason))
            held = b""
        else:
            out += [Filler(held)] * bool(held) + [piece]
            held = b""
    return out + [Filler(held)] * bool(held)
