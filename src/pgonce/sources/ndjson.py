"""Read NDJSON: one JSON object a line, each a record."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

from pgonce.model.record import Filler, Malformed, Piece, Record
from pgonce.sources.blocks import BOM, MAX_RECORD_BYTES, Block
from pgonce.sources.jsontext import NotARecord, exact_decoder, parse_object
from pgonce.sources.options import ReadingOptions
from pgonce.sources.skipping import Skipped

BLANK = b" \t\r\n"

Fields = dict[str, object]


class Ndjson:
    """The NDJSON format of one input. It has no columns: every object names its own."""

    by_line = True
    identity = None

    def __init__(self) -> None:
        self.columns: tuple[str, ...] | None = None

    @classmethod
    def open(cls, blocks: Iterator[Block], options: ReadingOptions, name: str) -> Ndjson:
        """There is nothing to read ahead of the lines themselves."""
        return cls()

    def pieces(self, blocks: Iterator[Block], *, offset: int, lines: int) -> Iterator[Piece]:
        """Yield the pieces of ``blocks``, which begin at ``offset`` behind ``lines`` line feeds."""
        return pieces_of_lines(blocks, offset=offset, lines=lines)


def pieces_of_lines(
    blocks: Iterator[Block],
    *,
    offset: int,
    lines: int,
    decode: Callable[[str], object] | None = None,
    fields_of: Callable[[Fields], Fields] | None = None,
) -> Iterator[Piece]:
    """Yield a piece a line: the record of the JSON object that it is, blank, or why it is neither.

    ``fields_of`` makes a record's fields of an object; it may raise NotARecord.
    """
    line = lines + 1
    at_start = offset == 0
    decode = decode or exact_decoder()
    skipped = Skipped()
    for block in blocks:
        if block.torn:
            at_start = False
            yield from skipped.add(block.body)
            if block.body.endswith(b"\n"):
                yield too_long(line, skipped.rest())
                skipped = Skipped()
                line += 1
            continue
        for raw in io.BytesIO(block.body):
            yield _piece(raw, line, decode, fields_of, at_start=at_start)
            at_start = False
            line += 1
    if rest := skipped.rest():
        yield too_long(line, rest)


def _piece(
    raw: bytes,
    line: int,
    decode: Callable[[str], object],
    fields_of: Callable[[Fields], Fields] | None,
    *,
    at_start: bool,
) -> Piece:
    text_bytes = raw.removeprefix(BOM) if at_start else raw
    text_bytes = text_bytes.strip(BLANK)
    if not text_bytes:
        return Filler(raw)
    try:
        fields = parse_object(text_bytes, shift=raw.index(text_bytes), line=line, decode=decode)
        return Record(line, raw, fields_of(fields) if fields_of else fields)
    except NotARecord as refused:
        return Malformed(line, raw, str(refused))


def too_long(line: int, raw: bytes) -> Malformed:
    """Say that a line is too long to be a record; ``raw`` is its last part."""
    return Malformed(line, raw, f"the line is longer than {MAX_RECORD_BYTES} bytes")
