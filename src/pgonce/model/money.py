"""Money as whole minor units ("cents") in 64 bits, read exactly and never through a binary float.

Safe to re-run: pure functions; the same value always gives the same cents.
"""

from __future__ import annotations

import re
from decimal import Decimal

from pgonce.errors import ConfigurationError, RowRefused
from pgonce.model.canonical import quoted, refused

MAX_CENTS = 2**63 - 1
"""The largest amount: what PostgreSQL's bigint holds. The smallest is ``-MAX_CENTS - 1``."""

MAX_SCALE = 18
"""The most decimal places a currency unit may be cut into: 10**18 is the last power of ten that fits 64 bits."""

_MAX_DIGITS = 64
"""Digits looked at before a number is called too big: more than 64 bits can ever need at any scale."""

_WHOLE = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")


def parse_cents(value: object, *, scale: int | None, column: str) -> int:
    """Read an amount as whole minor units.

    Without a scale (``None`` or 0) ``value`` is a number of cents: the text ``1250`` or the JSON number 1250; anything
    written with decimal places is refused, since it is probably not in cents. With ``scale=2`` it is an exact decimal
    number of units: ``12.5`` and ``12.50`` are 1250 cents, ``12`` is 1200, ``12.505`` is refused. Signs other than
    ``-``, blanks, thousands separators, currency signs, exponents in text and floats are refused.

    Raises RowRefused naming ``column``; ConfigurationError for a scale outside 0 to MAX_SCALE.
    """
    places = scale or 0
    if not 0 <= places <= MAX_SCALE:
        raise ConfigurationError(f"the amount's scale is {scale}; it must be from 0 to {MAX_SCALE}")
    if isinstance(value, str):
        cents = _from_text(value, places, column)
    elif isinstance(value, int) and not isinstance(value, bool):
        cents = value * 10**places
    elif isinstance(value, Decimal):
        cents = _from_decimal(value, places, column)
    elif value is None:
        raise refused(column, "the amount is missing")
    elif isinstance(value, float):
        raise refused(column, f"{value!r} is a binary float, which is not exact; hand it in as Decimal, int or text")
    else:
        raise refused(column, f"{quoted(value)} is not an amount; write it like {_example(places)}")
    if not -MAX_CENTS - 1 <= cents <= MAX_CENTS:
        raise _overflow(value, places, column)
    return cents


def format_cents(cents: int, scale: int | None) -> str:
    """Write minor units as a decimal number with ``scale`` places: 1250 with scale 2 is ``12.50``."""
    if not scale:
        return str(cents)
    digits = str(abs(cents)).rjust(scale + 1, "0")
    return f"{'-' if cents < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _from_text(text: str, places: int, column: str) -> int:
    if not text:
        raise refused(column, "the amount is empty")
    if not places:
        if not _WHOLE.fullmatch(text):
            raise refused(column, f"{quoted(text)} is not a whole number of cents; {_hint(text)}")
        if len(text) > _MAX_DIGITS:
            text = _without_leading_zeros(text, places, column)
        return int(text)
    found = _DECIMAL.fullmatch(text)
    if found is None:
        raise refused(column, f"{quoted(text)} is not an amount; write it like {_example(places)}")
    sign, whole, fraction = found[1], found[2], (found[3] or "").rstrip("0")
    if len(fraction) > places:
        raise refused(column, f"{quoted(text)} has more than {places} decimal places")
    return int(_without_leading_zeros(sign + whole + fraction.ljust(places, "0"), places, column))


def _from_decimal(value: Decimal, places: int, column: str) -> int:
    if not value.is_finite():
        raise refused(column, f"{value} is not an amount")
    sign, digits, exponent = value.as_tuple()
    exponent = int(exponent)
    if not places and exponent < 0:
        raise refused(column, f"{quoted(value)} is not a whole number of cents; {_hint(str(value))}")
    if not value:
        return 0
    if value.adjusted() + places >= _MAX_DIGITS:
        raise _overflow(value, places, column)
    text = "".join(map(str, digits))
    shift = exponent + places
    if shift < 0:
        if text[shift:].strip("0"):
            raise refused(column, f"{quoted(value)} has more than {places} decimal places")
        text = text[:shift] or "0"
    else:
        text += "0" * shift
    return -int(text) if sign else int(text)


def _without_leading_zeros(text: str, places: int, column: str) -> str:
    """Cut a signed digit string down before it is converted: int() takes quadratic time, and refuses 4,301 digits."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    digits = digits.lstrip("0")
    if len(digits) > _MAX_DIGITS:
        raise _overflow(text, places, column)
    return sign + (digits or "0")


def _overflow(value: object, places: int, column: str) -> RowRefused:
    limit = format_cents(MAX_CENTS, places)
    return refused(column, f"{quoted(value)} is out of range; an amount is at most {limit} (64 bits)")


def _hint(text: str) -> str:
    if _DECIMAL.fullmatch(text):
        return "if amounts have decimal places, declare how many (--amount-scale 2)"
    return "write digits only, like 1250"


def _example(places: int) -> str:
    return format_cents(1234567890, places) if places > 2 else format_cents(1234, places)
