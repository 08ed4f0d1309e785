"""Read one JSON object from bytes: numbers exact, nothing in it that two readers could take in two ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from pgonce.sources.blocks import BOM, BOM_REASON

# The lowest limit that an interpreter can be told for integers from text, so that no setting changes what is a record.
MAX_INTEGER_DIGITS = 640
# Deep enough for every real document, and far from where interpreters differ in how deep they can go.
MAX_DEPTH = 64
# Far beyond what numeric can hold (131,072 digits), and within what every build of the decimal module can.
MAX_EXPONENT = 200_000


class NotARecord(Exception):
    """The reason why bytes are no record. ``broken``: they are not JSON at all, so their end is a guess, too."""

    def __init__(self, reason: str, *, broken: bool = False) -> None:
        super().__init__(reason)
        self.broken = broken


def parse_object(data: bytes, *, shift: int, line: int, decode: Callable[[str], object]) -> dict[str, object]:
    """Read the object that ``data`` is, without blanks around it; ``shift`` bytes of its line stand before it.

    Raises NotARecord with a plain reason.
    """
    if data.startswith(BOM):
        raise NotARecord(BOM_REASON)
    try:
        value = decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise NotARecord(f"cannot be decoded as utf-8 at byte {shift + error.start + 1} of line {line}") from None
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        raise NotARecord(f"is not valid JSON: {message} at character {shift + error.pos + 1}", broken=True) from None
    except RecursionError:
        raise NotARecord(_too_deep()) from None
    if not isinstance(value, dict):
        raise NotARecord(f"is not a JSON object but {_kind(value)}")
    brackets = data.count(b"{") + data.count(b"[")
    if brackets > MAX_DEPTH or b"\\u" in data:
        _inspect(value)
    return value


def exact_decoder() -> Callable[[str], object]:
    """Return a function that decodes JSON text with whole numbers as int and others as Decimal, and knows no NaN."""
    return decoder(parse_float=decimal, parse_constant=_constant)


def decoder(
    *, parse_float: Callable[[str], object], parse_constant: Callable[[str], object]
) -> Callable[[str], object]:
    """Return a function that decodes JSON text; what becomes of numbers that are not whole is the caller's business."""
    return json.JSONDecoder(
        parse_float=parse_float, parse_int=_integer, parse_constant=parse_constant, object_pairs_hook=_unique_names
    ).decode


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise NotARecord(f"has the key {_shown(key)} twice in one object")
            seen.add(key)
    return fields


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise NotARecord(f"has an integer of {len(text)} digits; at most {MAX_INTEGER_DIGITS} are taken")
    return int(text)


def decimal(text: str) -> Decimal:
    """Read a number exactly. Raises NotARecord for one that no numeric can hold."""
    try:
        value = Decimal(text)
        in_range = abs(value.adjusted()) <= MAX_EXPONENT
    except InvalidOperation:
        in_range = False
    if not in_range:
        raise NotARecord(f"has a number that is out of range: {text[:40]}")
    return value


def _constant(text: str) -> NoReturn:
    raise NotARecord(f"has the value {text}, which is not a number")


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
        raise NotARecord(_too_deep())
    for item in level:
        if isinstance(item, str):
            _inspect_text(item)


def _inspect_text(text: str) -> None:
    if "\0" in text:
        raise NotARecord("has the character \\u0000 (NUL), which PostgreSQL cannot store as text")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise NotARecord(f"has the lone surrogate \\u{code:04x}, which is half of a character") from None


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
