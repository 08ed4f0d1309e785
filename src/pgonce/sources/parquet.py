"""Read Parquet as the text it stands for: each row as one line of JSON, behind a header that names columns and kinds.

A Parquet file has no lines, and the bytes it is stored in depend on who wrote it. So digest, size and positions are on
its rows: a header without a line feed, then a line of JSON a row. The number of a row is the number of its line. A file
that was written anew with another compression, other row groups or another library is the same content.

Whole numbers stand as integers, decimals as exact numbers, dates and times as canonical text (with an offset, in UTC);
they keep their meaning under every declared type. Binary floats and binary values stay what they are: they can be left
out of the payload, and are refused by name where they are compared.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import chain

from pgonce.errors import ConfigurationError
from pgonce.model.record import Filler, Piece
from pgonce.sources.blocks import MAX_RECORD_BYTES, Block
from pgonce.sources.jsontext import decimal, decoder
from pgonce.sources.ndjson import Fields, pieces_of_lines
from pgonce.sources.options import ReadingOptions

Kind = str | list["Kind"] | dict[str, "Kind"]
"""What a column holds: a word, or for nested columns ``["list", kind]``, ``["map", kind]`` or kinds by name."""


def header_text(kinds: dict[str, Kind]) -> bytes:
    """Write the header of a file's text; it says all that decides how the lines are read."""
    return json.dumps({"parquet": kinds}, ensure_ascii=False, separators=(",", ":")).encode()


class Parquet:
    """The Parquet format of one input, over the text that its rows are rendered to."""

    by_line = True
    identity = None

    def __init__(self, kinds: dict[str, Kind]) -> None:
        self.columns: tuple[str, ...] | None = tuple(kinds)
        self._header = header_text(kinds)
        self._binary = {name: kind for name, kind in kinds.items() if _holds_binary(kind)}

    @classmethod
    def open(cls, blocks: Iterator[Block], options: ReadingOptions, name: str) -> Parquet:
        """Read the header back. Raises ConfigurationError for columns that cannot be told from each other."""
        head = b""
        for block in blocks:
            head += block.body
            if len(head) > MAX_RECORD_BYTES:
                break
        try:
            header, _ = json.JSONDecoder().raw_decode(head.decode("utf-8", "replace"))
        except json.JSONDecodeError:
            raise ConfigurationError(f"{name}: its columns take more than {MAX_RECORD_BYTES} bytes to name") from None
        kinds: dict[str, Kind] = header["parquet"]
        if not kinds:
            raise ConfigurationError(f"{name}: has no columns")
        return cls(kinds)

    def pieces(self, blocks: Iterator[Block], *, offset: int, lines: int) -> Iterator[Piece]:
        """Yield the pieces of ``blocks``, which begin at ``offset`` behind ``lines`` line feeds."""
        if offset < len(self._header):
            yield Filler(self._header[offset:])
            blocks = _behind(blocks, len(self._header) - offset)
        yield from pieces_of_lines(
            blocks,
            offset=max(1, offset),
            lines=lines,
            decode=decoder(parse_float=_number, parse_constant=float),
            fields_of=self._with_binary if self._binary else None,
        )

    def _with_binary(self, fields: Fields) -> Fields:
        for name, kind in self._binary.items():
            fields[name] = _binary(fields[name], kind)
        return fields


def _number(text: str) -> object:
    """Tell a binary float from a decimal: only the float is written with a power of ten."""
    return float(text) if "e" in text else decimal(text)


def _behind(blocks: Iterator[Block], count: int) -> Iterator[Block]:
    """Leave out the first ``count`` bytes."""
    for block in blocks:
        if len(block.body) > count:
            return chain((Block(block.body[count:], block.torn),), blocks)
        count -= len(block.body)
    return iter(())


def _holds_binary(kind: Kind) -> bool:
    if isinstance(kind, str):
        return kind == "binary"
    return any(_holds_binary(part) for part in (kind.values() if isinstance(kind, dict) else kind))


def _binary(value: object, kind: Kind) -> object:
    """Turn base64 text back into the bytes it stands for, wherever the kind says so."""
    if value is None or not _holds_binary(kind):
        return value
    if isinstance(value, str):
        return base64.b64decode(value)
    if isinstance(value, list):
        return [_binary(item, kind[1]) for item in value] if isinstance(kind, list) else value
    if isinstance(value, dict):
        return {name: _binary(item, kind[1] if isinstance(kind, list) else kind[name]) for name, item in value.items()}
    return value
