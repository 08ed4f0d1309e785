"""The identity of an event: its id, the text and fingerprint of its payload, and how two payloads differ.

An event is (job, source, event_id). The same identity with the same payload is a replay; with another payload it is a
conflict. What "the same payload" means is the canonical rule of `pgonce.model.canonical`.

Safe to re-run: pure functions; the same values always give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any
from unicodedata import is_normalized

from pgonce.errors import InvariantBroken
from pgonce.model.canonical import (
    CANONICAL_VERSION,
    canonical_json,
    clean_text,
    declared,
    load_json,
    quoted,
    refused,
    shortened,
)

MAX_ID_BYTES = 512
"""Bytes of an event id or a source in UTF-8: job, source and id fit one page of a PostgreSQL index together."""

MAX_PAYLOAD_BYTES = 256 * 1024
"""Bytes of a canonical payload in UTF-8: a chunk of 1,000 such rows still fits in memory and in one statement."""

_MAX_BYTES_A_CHARACTER = 4
_MAX_ID_BITS = MAX_ID_BYTES * 10 // 3


def event_id(values: Sequence[object], columns: Sequence[str]) -> str:
    """Make the event id from the values of the key columns, in the job's order.

    One column gives its text in normal form C, a JSON integer its decimal digits; several columns give a compact JSON
    array of these texts. Nothing is trimmed. Raises RowRefused naming the column for a value that is missing, empty,
    blank at an end, not text or a whole number, not storable, or longer than MAX_ID_BYTES.
    """
    if len(columns) == 1:
        return _within(_key_text(values[0], columns[0]), columns[0])
    texts = [encode_basestring(_key_text(value, column)) for value, column in zip(values, columns, strict=True)]
    return _within(f"[{','.join(texts)}]", ",".join(columns))


def source_text(value: object, column: str = "source") -> str:
    """Make the source part of an identity: the rules of an event id of one column, but it may be empty."""
    return "" if value == "" else _within(_key_text(value, column), column)


def _key_text(value: object, column: str) -> str:
    if isinstance(value, str):
        text = clean_text(value, column)
        if not text:
            raise refused(column, "is empty; every row needs an id")
        if text[0].isspace() or text[-1].isspace():
            raise refused(column, f"{quoted(text)} begins or ends with a blank; ids are not trimmed, remove it")
        return text
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > _MAX_ID_BITS:
            raise refused(column, f"the id is longer than {MAX_ID_BYTES} bytes")
        return int.__repr__(value)
    if value is None:
        raise refused(column, "is missing; every row needs an id")
    raise refused(column, f"{quoted(value)} cannot be an id; only text and whole numbers can")


def _within(text: str, column: str) -> str:
    if len(text) > MAX_ID_BYTES // _MAX_BYTES_A_CHARACTER and len(text.encode()) > MAX_ID_BYTES:
        raise refused(column, f"the id {quoted(text)} is longer than {MAX_ID_BYTES} bytes")
    return text


def payload_text(
    fields: Mapping[str, object],
    *,
    columns: Sequence[str] | None,
    omit: frozenset[str] = frozenset(),
    types: Mapping[str, str] | None = None,
) -> str:
    """Write a record's payload as canonical JSON text.

    With ``columns`` it is the array of their values in that order, null for a missing one; ``omit`` is not looked at.
    Without (``None``: an open set of fields) it is the object of all fields but those in ``omit``. ``types`` names the
    declared type of some columns. Raises RowRefused naming the column, also over MAX_PAYLOAD_BYTES.
    """
    if columns is None:
        text = _open_payload(fields, omit, types or {})
    elif types:
        text = _closed_payload(fields, columns, types)
    else:
        values = [fields.get(column) for column in columns]
        text = plain_array(values) or _closed_payload(fields, columns, {})
    if len(text) > MAX_PAYLOAD_BYTES // _MAX_BYTES_A_CHARACTER and len(text.encode()) > MAX_PAYLOAD_BYTES:
        raise refused(_largest(fields, columns), f"the row's payload is larger than {MAX_PAYLOAD_BYTES // 1024} KiB")
    return text


def plain_array(values: list[Any]) -> str | None:
    """Write strings that need neither escaping nor normalising as a JSON array in one go; else answer ``None``.

    Quote and comma are starters that compose with nothing, so the joined text is in normal form C exactly if every
    value is. A printable text holds no control character and no lone surrogate.
    """
    try:
        # What is not text raises TypeError here, which is the answer; asking each value first costs as much again.
        joined = '","'.join(values)
    except TypeError:
        return None
    if not values or "\\" in joined or joined.count('"') != 2 * (len(values) - 1) or not joined.isprintable():
        return None
    return f'["{joined}"]' if joined.isascii() or is_normalized("NFC", joined) else None


def _closed_payload(fields: Mapping[str, object], columns: Sequence[str], types: Mapping[str, str]) -> str:
    return "[" + ",".join([_column_text(fields.get(column), types.get(column), column) for column in columns]) + "]"


def _open_payload(fields: Mapping[str, object], omit: frozenset[str], types: Mapping[str, str]) -> str:
    written: dict[str, str] = {}
    for key, value in fields.items():
        name = clean_text(key, key)
        if name in omit:
            continue
        if name in written:
            raise refused(name, "comes twice in one row")
        written[name] = _column_text(value, types.get(name), name)
    parts = [f"{encode_basestring(name)}:{written[name]}" for name in sorted(written) if written[name] != "null"]
    return "{" + ",".join(parts) + "}"


def _column_text(value: object, type_: str | None, column: str) -> str:
    return canonical_json(declared(value, type_, column) if type_ else value, field=column)


def _largest(fields: Mapping[str, object], columns: Sequence[str] | None) -> str:
    """Name the column to look at first when a row is too large."""
    names = fields if columns is None else [column for column in columns if column in fields]
    return max(names, key=lambda name: len(str(fields[name])), default="")


def fingerprint(payload: str, amount_cents: int) -> bytes:
    """Hash a canonical payload and its amount, with the version of the rule, to 32 bytes (SHA-256)."""
    return hashlib.sha256(f"{CANONICAL_VERSION}\n{amount_cents}\n{payload}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that two payloads of the same event disagree on; both values as canonical JSON text."""

    field: str
    stored: str
    new: str


def differences(
    *,
    stored_payload: str,
    stored_columns: Sequence[str] | None,
    stored_amount: int,
    new_payload: str,
    new_columns: Sequence[str] | None,
    new_amount: int,
    amount_name: str = "amount",
) -> tuple[Difference, ...]:
    """Compare two payloads of one event, field by field; empty means that they are the same payload.

    A payload is what `payload_text` wrote with the column list beside it. Columns that only one side's closed list
    knows are not compared (a column that was added later is no conflict); an open list (``None``) knows every column.
    Null and missing are the same. Both sides are written anew, so texts of older Unicode tables compare right.
    Raises InvariantBroken if a payload and its column list do not fit together.
    """
    found: list[Difference] = []
    if stored_amount != new_amount:
        found.append(Difference(amount_name, str(stored_amount), str(new_amount)))
    if stored_payload == new_payload and stored_columns == new_columns:
        return tuple(found)
    stored, new = _fields_of(stored_payload, stored_columns), _fields_of(new_payload, new_columns)
    for field in _compared(stored, stored_columns, new, new_columns):
        before, after = stored.get(field, "null"), new.get(field, "null")
        if before != after:
            found.append(Difference(field, before, after))
    return tuple(found)


def _fields_of(payload: str, columns: Sequence[str] | None) -> dict[str, str]:
    value = load_json(payload, field="payload")
    if columns is None and isinstance(value, dict):
        pairs: Iterator[tuple[str, object]] = iter(value.items())
    elif columns is not None and isinstance(value, list) and len(value) == len(columns):
        pairs = zip(columns, value, strict=True)
    else:
        raise InvariantBroken(f"the payload {quoted(payload)} does not fit the stored columns {columns}")
    return {clean_text(name, name): canonical_json(item, field=name) for name, item in pairs}


def _compared(
    stored: Collection[str],
    stored_columns: Sequence[str] | None,
    new: Collection[str],
    new_columns: Sequence[str] | None,
) -> list[str]:
    """List the fields that both sides know, in the order of a closed list if there is one, else by name."""
    if stored_columns is None and new_columns is None:
        return sorted({*stored, *new})
    if stored_columns is None or new_columns is None:
        return list(new if stored_columns is None else stored)
    return [field for field in stored if field in new]


def describe(found: Sequence[Difference], redact: frozenset[str] = frozenset()) -> str:
    """Name every differing field with both values, each shortened to 80 characters.

    Values of the fields in ``redact`` are shown as ``(redacted)``. Where the shortened values look alike, the first
    character that differs is numbered.
    """
    return "; ".join(_described(difference, difference.field in redact) for difference in found)


def _described(difference: Difference, redacted: bool) -> str:
    name = shortened(difference.field)
    if redacted:
        return f"{name}: stored (redacted), now (redacted)"
    stored, new = shortened(difference.stored), shortened(difference.new)
    note = f" (they differ from character {_first_difference(difference)} on)" if stored == new else ""
    return f"{name}: stored {stored}, now {new}{note}"


def _first_difference(difference: Difference) -> int:
    pairs = zip(difference.stored, difference.new, strict=False)
    shorter = min(len(difference.stored), len(difference.new))
    return next((place for place, (one, other) in enumerate(pairs, 1) if one != other), shorter + 1)
