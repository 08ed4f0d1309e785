"""Read NDJSON: one JSON object a line, numbers exact, nothing in it that two readers could take in two ways."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from pgonce.model.record import Filler, Malformed, Piece, Record
from pgonce.sources.blocks import BOM, BOM_REASON, MAX_RECORD_BYTES, Block
from pgonce.sources.options import ReadingOptions
from pgonce.sources.skipping import Skipped

# The lowest limit that an interpreter can be told for integers from text, so that no setting changes what is a record.
MAX_INTEGER_DIGITS = 640
# Deep enough for every real document, and far from where interpreters differ in how deep they can go.
MAX_DEPTH = 64
# Far beyond what numeric can hold (131,072 digits), and within what every build of the decimal module can.
MAX_EXPONENT = 200_000

_BLANK = b" \t\r\n"


class Ndjson:
    """The NDJSON format of one input. It has no columns: every object names its own."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] | None = None

    @classmethod
    def open(cls, blocks: Iterator[Block], options: ReadingOptions, name: str) -> Ndjson:
        """There is nothing to read ahead of the lines themselves."""
        return cls()

    def pieces(self, blocks: Iterator[Block], *, offset: int, lines: int) -> Iterator[Piece]:
        """Yield the pieces of ``blocks``, which begin at ``offset`` behind ``lines`` line feeds."""
        line = lines + 1
        at_start = offset == 0
        decode = _decoder()
        skipped = Skipped()
        for block in blocks:
            if block.torn:
                at_start = False
                yield from skipped.add(block.body)
                if block.body.endswith(b"\n"):
                    yield _too_long(line, skipped.rest())
                    skipped = Skipped()
                    line += 1
                continue
            for raw in io.BytesIO(block.body):
                yield _piece(decode, line, raw, at_start)
                at_start = False
                line += 1
        if rest := skipped.rest():
            yield _too_long(line, rest)


class _LineError(Exception):
    """The reason why a line is no record."""


def _piece(decode: json.JSONDecoder, line: int, raw: bytes, at_start: bool) -> Piece:
    text_bytes = raw.removeprefix(BOM) if at_start else raw
    text_bytes = text_bytes.strip(_BLANK)
    if not text_bytes:
        return Filler(raw)
    try:
        fields = _parse(decode, text_bytes, shift=raw.index(text_bytes), line=line)
    except _LineError as refused:
        return Malformed(line, raw, str(refused))
    return Record(line, raw, fields)


def _parse(decode: json.JSONDecoder, data: bytes, *, shift: int, line: int) -> dict[str, object]:
    if data.startswith(BOM):
        raise _LineError(BOM_REASON)
    try:
        value = decode.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _LineError(f"cannot be decoded as utf-8 at byte {shift + error.start + 1} of line {line}") from None
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        raise _LineError(f"is not valid JSON: {message} at character {shift + error.pos + 1}") from None
    except RecursionError:
        raise _LineError(_too_deep()) from None
    if not isinstance(value, dict):
        raise _LineError(f"is not a JSON object but {_kind(value)}")
    brackets = data.count(b"{") + data.count(b"[")
    if brackets > MAX_DEPTH or b"\\u" in data:
        _inspect(value)
    return value


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_float=_decimal, parse_int=_integer, parse_constant=_constant, object_pairs_hook=_object
    )


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _LineError(f"has the key {_shown(key)} twice in one object")
            seen.add(key)
    return fields


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise _LineError(f"has an integer of {len(text)} digits; at most {MAX_INTEGER_DIGITS} are taken")
    return int(text)


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
        in_range = abs(value.adjusted()) <= MAX_EXPONENT
    except InvalidOperation:
        in_range = False
    if not in_range:
        raise _LineError(f"has a number that is out of range: {text[:40]}")
    return value


def _constant(text: str) -> NoReturn:
    raise _LineError(f"has the value {text}, which is not a number")


def _inspect(value: object) -> None:
    """Refuse what only an escape or deep nesting can bring in: NUL, lone surrogates, too many levels."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, str):
                _inspect_text(item)
            elif isinstance(item, dict):
                below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return
        level = below
    if any(isinstance(item, dict | list) for item in level):
        raise _LineError(_too_deep())
    for item in level:
        if isinstance(item, str):
            _inspect_text(item)


def _inspect_text(text: str) -> None:
    if "\0" in text:
        raise _LineError("has the character \\u0000 (NUL), which PostgreSQL cannot store as text")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise _LineError(f"has the lone surrogate \\u{code:04x}, which is half of a character") from None


def _too_long(line: int, raw: bytes) -> Malformed:
    return Malformed(line, raw, f"the line is longer than {MAX_RECORD_BYTES} bytes")


def _too_deep() -> str:
    return f"is nested more than {MAX_DEPTH} levels deep"


def _shown(key: str) -> str:
    return json.dumps(key if len(key) <= 80 else key[:79] + "\u2026", ensure_ascii=not key.isprintable())


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "a number"
