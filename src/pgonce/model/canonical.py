"""The canonical rule: when two values are the same value, and the one text that both are written as.

Version 1. Two payloads are the same payload if, and only if, their canonical texts are the same bytes. The rule is
pgonce's own; it does not depend on the database. Its version is stored with every job, and a rule that would write one
value differently gets another number.

**Text form.** JSON without blanks between its parts, in UTF-8. Characters outside ASCII stand as themselves; only
``"``, the backslash and the control characters U+0001 to U+001F are escaped.

**Strings** are compared in Unicode normal form C: a composed and a decomposed ``é`` are one string. Nothing is trimmed
and case is kept. U+0000 and lone surrogates are refused, as PostgreSQL text cannot hold them. A character that the
running Python's Unicode tables do not know yet stands as it came.

**Numbers** are compared by their exact decimal value: ``1``, ``1.0`` and ``1e0`` are ``1``; ``0.10`` is ``0.1``;
``-0`` is ``0``. They are written plainly, whatever their size (``123456789012345678901234567890``), unless that takes
more than 40 zeros of padding; then as one digit, a fraction if there is one, and a power of ten: ``1e41``, ``1.5e-50``.
A number that came with more than 1,000 digits is refused. NaN, Infinity and binary floats are refused: a float no
longer knows what was written. A number is not its text: ``7`` and ``"7"`` differ.

**Objects** are sets of named values. Names are in normal form C and sorted by code point. Two names that are the same
in normal form C are refused. A name whose value is null is left out, at every depth: null and missing are the same.

**Arrays** keep their order, and their nulls: ``[1,null]`` and ``[1]`` differ.

**Depth.** Objects and arrays may be nested 64 deep; deeper values are refused.

**CSV fields** are strings, unless their column is declared. **Declared columns** (``--types column:type``) are read
into one form first, whether they came as text or as a JSON value. Empty text is null for every type but ``text``:

- ``text``: a string as it is; a whole number as its digits.
- ``int``: ``007`` is 7. An optional ``-`` and digits; a JSON number without a fraction (``7.0`` is 7).
- ``decimal``: ``1.50`` is 1.5, exactly. An optional ``-``, digits, a fraction, a power of ten (``15e-1``).
- ``bool``: ``true t yes 1`` and ``false f no 0`` in any case; JSON ``true``, ``false``, ``1`` and ``0``.
- ``date``: ``2026-11-30``, a day that exists.
- ``timestamp``: ``2026-11-30T07:00:00+07:00``, with ``T`` or a blank, seconds optional. With an offset it is turned to
  UTC and ends in ``Z``; without one it stays without one, and the two are never equal. Zeros at the end of the
  fraction of a second are dropped; finer than a microsecond is refused, and so are second 60 and hour 24.
- ``json``: text is read as JSON, in which the same name twice in one object is refused.

Dates and times are known only in declared columns; elsewhere they are the strings they were written as.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import NoReturn

from pgonce.errors import RowRefused

CANONICAL_VERSION = 1
"""The number of the rule above. A text written under one version is never compared with one of another."""

MAX_NESTING = 64
"""How deep objects and arrays may be nested: far beyond hand-made data, far below Python's own recursion limit."""

MAX_NUMBER_DIGITS = 1_000
"""Digits one number may come with: below Python's own limit of 4,300, so that no conversion takes quadratic time."""

MAX_PLAIN_ZEROS = 40
"""Padding zeros written out: enough for every 128-bit integer, and ``1e999999999`` stays eleven characters."""

SHOWN_CHARACTERS = 80
"""Characters of a value shown in a message: it stays on a line or two, and a payload does not end up in a log."""

TYPES = ("text", "int", "decimal", "bool", "date", "timestamp", "json")
"""The types a column can be declared as."""

_WHOLE = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ](?P<minute>[0-9]{2}:[0-9]{2})(?P<second>:[0-9]{2})?"
    r"(?:\.(?P<fraction>[0-9]+))?(?P<offset>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_BOOLS = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}
_ALWAYS_PLAIN_BELOW = 10 ** (MAX_PLAIN_ZEROS + 1)
_TOO_MANY_DIGITS = 10**MAX_NUMBER_DIGITS


def canonical_json(value: object, *, field: str = "value") -> str:
    """Write ``value`` as its canonical JSON text.

    ``value`` is made of ``str``, ``int``, ``decimal.Decimal``, ``bool``, ``None``, mappings with string keys, lists and
    tuples. Raises RowRefused, naming ``field`` and the place inside it, for anything the rule refuses.
    """
    return _written(value, field, 0)


def _written(value: object, field: str, depth: int) -> str:
    if isinstance(value, str):
        return encode_basestring(clean_text(value, field))
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Decimal)):
        return number_text(value, field)
    if depth == MAX_NESTING:
        raise refused(field, f"is nested more than {MAX_NESTING} deep; flatten the value")
    if isinstance(value, Mapping):
        return _object(value, field, depth + 1)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_written(item, f"{field}[{i}]", depth + 1) for i, item in enumerate(value)]) + "]"
    if isinstance(value, float):
        raise refused(field, f"{value!r} is a binary float, which is not exact; hand it in as Decimal, int or text")
    if isinstance(value, dt.date):
        raise refused(field, "is a date or time object; declare the column as date or timestamp, or hand it in as text")
    raise refused(field, f"is a {type(value).__name__}, which has no canonical form; hand it in as text")


def _object(value: Mapping[object, object], field: str, depth: int) -> str:
    named: dict[str, object] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise refused(field, f"has the name {quoted(key)}, which is not text")
        name = clean_text(key, field)
        if name in named:
            raise refused(field, f"has the name {quoted(name)} twice in one object")
        named[name] = item
    return (
        "{"
        + ",".join(
            [
                f"{encode_basestring(name)}:{_written(named[name], f'{field}.{name}', depth)}"
                for name in sorted(named)
                if named[name] is not None
            ]
        )
        + "}"
    )


def clean_text(value: str, field: str) -> str:
    """Return ``value`` in normal form C. Raises RowRefused for U+0000 and for lone surrogates."""
    if "\0" in value:
        raise refused(field, "holds the character U+0000, which PostgreSQL text cannot hold")
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refused(field, f"holds the lone surrogate U+{ord(value[error.start]):04X}") from error
    return value if unicodedata.is_normalized("NFC", value) else unicodedata.normalize("NFC", value)


def number_text(value: int | Decimal, field: str) -> str:
    """Write an exact number in its one form. Raises RowRefused for NaN, Infinity and more than MAX_NUMBER_DIGITS."""
    if isinstance(value, int):
        if -_ALWAYS_PLAIN_BELOW < value < _ALWAYS_PLAIN_BELOW:
            return int.__repr__(value)
        if not -_TOO_MANY_DIGITS < value < _TOO_MANY_DIGITS:
            raise refused(field, f"has more than {MAX_NUMBER_DIGITS} digits")
        return _decimal_text(value < 0, str(abs(value)), 0)
    if not value.is_finite():
        raise refused(field, f"{value} is not a number that can be compared")
    sign, digits, exponent = value.as_tuple()
    if len(digits) > MAX_NUMBER_DIGITS:
        raise refused(field, f"has more than {MAX_NUMBER_DIGITS} digits")
    return _decimal_text(bool(sign), "".join(map(str, digits)), int(exponent))


def _decimal_text(negative: bool, digits: str, exponent: int) -> str:
    digits = digits.lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return "0"
    exponent += len(digits) - len(significant)
    point = len(significant) + exponent
    sign = "-" if negative else ""
    if exponent > MAX_PLAIN_ZEROS or -point > MAX_PLAIN_ZEROS:
        fraction = f".{significant[1:]}" if len(significant) > 1 else ""
        return f"{sign}{significant[0]}{fraction}e{point - 1}"
    if exponent >= 0:
        return sign + significant + "0" * exponent
    if point > 0:
        return f"{sign}{significant[:point]}.{significant[point:]}"
    return f"{sign}0.{'0' * -point}{significant}"


def load_json(text: str, *, field: str) -> object:
    """Read JSON text without losing anything: exact numbers, no name twice, no NaN.

    Raises RowRefused, naming ``field``. Depth and characters are judged later, by ``canonical_json``.
    """
    try:
        return json.loads(text, parse_float=_exact, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise refused(field, f"is not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise refused(field, f"is nested more than {MAX_NESTING} deep; flatten the value") from error
    except _UnreadableError as error:
        raise refused(field, str(error)) from error
    except ValueError as error:
        raise refused(field, f"holds a number of more than {MAX_NUMBER_DIGITS} digits") from error


class _UnreadableError(Exception):
    """JSON that parses but does not say one thing; the message is the reason."""


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise _UnreadableError(f"holds the number {quoted(text)}, whose power of ten is out of range") from error


def _no_constant(text: str) -> NoReturn:
    raise _UnreadableError(f"holds {text}, which is not a number that can be compared")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in values if names.count(name) > 1)
        raise _UnreadableError(f"has the name {quoted(twice)} twice in one object")
    return values


def declared(value: object, type: str, column: str) -> object:  # noqa: A002 - the user's own word for it
    """Turn CSV text or a JSON value of a declared column into the value that is compared.

    ``type`` is one of TYPES. Returns ``None``, ``str``, ``int``, ``Decimal``, ``bool`` or, for ``json``, any JSON
    value. Raises RowRefused naming the column if ``value`` is not of that type.
    """
    if value is None or (value == "" and type != "text"):
        return None
    if type == "text":
        return _text(value, column)
    if type == "int":
        return _whole(value, column)
    if type == "decimal":
        return _decimal(value, column)
    if type == "bool":
        return _bool(value, column)
    if type == "date":
        return _date(value, column)
    if type == "timestamp":
        return _timestamp(value, column)
    if type == "json":
        return load_json(value, field=column) if isinstance(value, str) else value
    raise AssertionError(f"unknown column type {type!r}")


def _text(value: object, column: str) -> str:
    if isinstance(value, str):
        return clean_text(value, column)
    if isinstance(value, int) and not isinstance(value, bool):
        if -_TOO_MANY_DIGITS < value < _TOO_MANY_DIGITS:
            return int.__repr__(value)
        raise refused(column, f"has more than {MAX_NUMBER_DIGITS} digits")
    raise refused(column, f"{quoted(value)} is not text")


def _whole(value: object, column: str) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        if len(value) > MAX_NUMBER_DIGITS:
            raise refused(column, f"has more than {MAX_NUMBER_DIGITS} digits")
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() < MAX_NUMBER_DIGITS:
        text = number_text(value, column)
        if "." not in text and "e-" not in text:
            return int(value)
    raise refused(column, f"{quoted(value)} is not a whole number")


def _decimal(value: object, column: str) -> int | Decimal:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        if len(value) > MAX_NUMBER_DIGITS:
            raise refused(column, f"has more than {MAX_NUMBER_DIGITS} digits")
        try:
            return Decimal(value)
        except InvalidOperation as error:
            raise refused(column, f"{quoted(value)} has a power of ten that is out of range") from error
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Decimal) and value.is_finite():
        return value
    raise refused(column, f"{quoted(value)} is not a decimal number; write it like 12.34")


def _bool(value: object, column: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    known = _BOOLS.get(value.lower()) if isinstance(value, str) else None
    if known is None:
        raise refused(column, f"{quoted(value)} is not a truth value; write true or false, t or f, yes or no, 1 or 0")
    return known


def _date(value: object, column: str) -> str:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return dt.date.fromisoformat(value).isoformat()
        except ValueError as error:
            raise refused(column, f"{quoted(value)} is not a day of the calendar") from error
    raise refused(column, f"{quoted(value)} is not a date; write it like 2026-11-30")


def _timestamp(value: object, column: str) -> str:
    if isinstance(value, dt.datetime):
        value = value.isoformat()
    found = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if found is None or (found["fraction"] and not found["second"]):
        raise refused(column, f"{quoted(value)} is not a timestamp; write it like 2026-11-30T07:00:00+07:00")
    fraction = (found["fraction"] or "").rstrip("0")
    if len(fraction) > 6:
        raise refused(column, f"{quoted(value)} is finer than a microsecond")
    try:
        moment = dt.datetime.fromisoformat(f"{found['day']}T{found['minute']}{found['second'] or ':00'}")
        if found["offset"]:
            moment -= _offset(found["offset"])
    except (ValueError, OverflowError) as error:
        raise refused(column, f"{quoted(value)} is not a moment of the calendar") from error
    return moment.isoformat() + (f".{fraction}" if fraction else "") + ("Z" if found["offset"] else "")


def _offset(text: str) -> dt.timedelta:
    """Read ``Z``, ``+07``, ``+0700`` or ``+07:00``. Raises ValueError from 24 hours or 60 minutes on."""
    if text in "Zz":
        return dt.timedelta(0)
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("offset out of range")
    offset = dt.timedelta(hours=hours, minutes=minutes)
    return -offset if text[0] == "-" else offset


def quoted(value: object) -> str:
    """Show a value inside a message: quoted if it is text, on one line, at most SHOWN_CHARACTERS long."""
    if isinstance(value, str):
        return f"'{shortened(value)}'"
    if isinstance(value, int) and not -_TOO_MANY_DIGITS < value < _TOO_MANY_DIGITS:
        return f"a number of more than {MAX_NUMBER_DIGITS} digits"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return shortened(str(value))
    return "null" if value is None else f"a value of type {type(value).__name__}"


def shortened(text: str) -> str:
    """Cut ``text`` to SHOWN_CHARACTERS, with an ellipsis as the last, and escape what a terminal would obey."""
    if len(text) > SHOWN_CHARACTERS:
        text = text[: SHOWN_CHARACTERS - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def refused(column: str, reason: str) -> RowRefused:
    """Make the refusal of a value of ``column``, to be raised; ``reason`` goes on after the column's name."""
    return RowRefused(f"column {column}: {reason}")
