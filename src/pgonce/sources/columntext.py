"""Read whole columns of text by a job's definition: identities, amounts and payloads, equal to reading row by row.

What is plain is done for all rows at once. Every row that is not (blank ends, escapes that are rare, other normal
forms, numbers of an unusual form, values that are refused) is marked, and its caller reads it the way all rows are
defined to be read, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgonce.errors import RowRefused
from pgonce.model.canonical import canonical_json, declared
from pgonce.model.identity import MAX_ID_BYTES, MAX_PAYLOAD_BYTES
from pgonce.model.row import RowReader

Marks = np.ndarray[Any, np.dtype[np.bool_]]
"""By row, whether it has to be read by itself."""

# Digits that surely fit 64 bits.
PLAIN_DIGITS_MAX = 18

_REPLACED = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def _table(*members: int | str) -> Marks:
    table = np.zeros(256, dtype=bool)
    table[[ord(member) if isinstance(member, str) else member for member in members]] = True
    return table


_ESCAPED = _table(*range(0x20), '"', "\\")
_RARE = _ESCAPED & ~_table(*(given for given, _ in _REPLACED))
# str.isspace() for ASCII; what begins or ends with another character than ASCII is looked at by itself.
_SUSPICIOUS_END = _table(*range(0x09, 0x0E), *range(0x1C, 0x21), *range(0x80, 0x100))


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What the columns of a block say, by row; meaningless where ``marked``."""

    source: pa.Array
    event_id: pa.Array
    amount_cents: pa.Array
    payload: pa.Array
    marked: Marks


class ColumnReader:
    """Reads columns of text by a definition whose payload columns are fixed: a `RowReader` for all rows at once."""

    def __init__(self, reader: RowReader) -> None:
        definition = reader.definition
        self._definition = definition
        self._source = reader.source
        self._types = dict(definition.types)
        self._payload = definition.columns or ()
        self._outside = [(name, kind) for name, kind in self._types.items() if name not in self._payload]
        optional = (definition.source_column, definition.amount)
        self.needed = frozenset((*definition.key, *self._payload, *self._types, *filter(None, optional)))

    def read(self, table: pa.Table, marked: Marks) -> Read:
        """Read the columns; ``marked`` are rows that have to be read by themselves in any case."""
        definition = self._definition
        columns = {name: table.column(name).combine_chunks() for name in self.needed}
        marked = marked.copy()
        identity = self._identity([columns[name] for name in definition.key], marked)
        if definition.source_column:
            source = columns[definition.source_column]
            _mark_texts(source, marked, empty=True)
        else:
            source = pa.repeat(self._source, table.num_rows)
        if definition.amount:
            cents = cents_of(columns[definition.amount], definition.amount_scale or 0, marked)
        else:
            cents = pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)
        payload = self._payloads(columns, table.num_rows, marked)
        for name, kind in self._outside:
            _by_value(columns[name], marked, _checked(kind, name))
        return Read(source, identity, cents, payload, marked)

    def _identity(self, keys: Sequence[pa.Array], marked: Marks) -> pa.Array:
        for key in keys:
            _mark_texts(key, marked, empty=False)
        if len(keys) == 1:
            return keys[0]
        joined = _json_array([(escaped(key, marked), True) for key in keys])
        marked |= sizes_of(joined) > MAX_ID_BYTES
        return joined

    def _payloads(self, columns: dict[str, pa.Array], rows: int, marked: Marks) -> pa.Array:
        if not self._payload:
            return pa.repeat("[]", rows)
        parts = []
        for name in self._payload:
            kind = self._types.get(name, "text")
            if kind == "text":
                parts.append((escaped(columns[name], marked), True))
            else:
                parts.append((_by_value(columns[name], marked, _canonical(kind, name)), False))
        joined = _json_array(parts)
        if rows and sizes_of(joined).max() > MAX_PAYLOAD_BYTES:
            marked |= sizes_of(joined) > MAX_PAYLOAD_BYTES
        return joined


def _canonical(kind: str, name: str) -> Callable[[str], str]:
    return lambda value: canonical_json(declared(value, kind, name), field=name)


def _checked(kind: str, name: str) -> Callable[[str], str]:
    """Only whether a value is of its type matters for a column outside of the payload."""
    return lambda value: str(declared(value, kind, name))


def _json_array(parts: Sequence[tuple[pa.Array, bool]]) -> pa.Array:
    """Join the parts of each row to a JSON array; those that are said to be strings are put into quotes."""
    pieces: list[Any] = []
    before = "["
    for array, is_string in parts:
        quote = '"' if is_string else ""
        pieces += [before + quote, array]
        before = f"{quote},"
    return pc.binary_join_element_wise(*pieces, before[:-1] + "]", "")


def offsets_of(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return where each text of an array begins in its data, and where the last one ends."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32, count=len(array) + array.offset + 1)[array.offset :]


def sizes_of(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the bytes of each text."""
    return np.diff(offsets_of(array))


def data_of(array: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the data that the offsets of an array point into."""
    buffer = array.buffers()[2]
    return np.frombuffer(buffer, dtype=np.uint8) if buffer is not None else np.empty(0, dtype=np.uint8)


def _mark_texts(array: pa.Array, marked: Marks, *, empty: bool) -> None:
    """Mark ids that are empty, too long, or begin or end in a way that has to be looked at."""
    offsets, data = offsets_of(array), data_of(array)
    sizes = np.diff(offsets)
    filled = sizes > 0
    if not empty:
        marked |= ~filled
    marked |= sizes > MAX_ID_BYTES
    if not filled.all():
        if not filled.any():
            return
        marked[filled] |= _SUSPICIOUS_END[data[offsets[:-1][filled]]] | _SUSPICIOUS_END[data[offsets[1:][filled] - 1]]
    else:
        marked |= _SUSPICIOUS_END[data[offsets[:-1]]] | _SUSPICIOUS_END[data[offsets[1:] - 1]]


def escaped(array: pa.Array, marked: Marks) -> pa.Array:
    """Escape texts as JSON does; mark those with a control character that is rare."""
    offsets = offsets_of(array)
    data = data_of(array)[offsets[0] : offsets[-1]]
    if not ((data < 0x20) | (data == ord('"')) | (data == ord("\\"))).any():
        return array
    rare = np.flatnonzero(_RARE[data])
    if len(rare):
        marked[np.searchsorted(offsets - offsets[0], rare, side="right") - 1] = True
    present = set(np.unique(data[_ESCAPED[data]]).tolist())
    for given, replacement in _REPLACED:
        if ord(given) in present:
            array = pc.replace_substring(array, pattern=given, replacement=replacement)
    return array


def _by_value(array: pa.Array, marked: Marks, write: Callable[[str], str]) -> pa.Array:
    """Write each distinct value once, by the rule for one value; mark the rows whose value is refused."""
    coded = array.dictionary_encode()
    written: list[str] = []
    refused: list[int] = []
    for number, value in enumerate(coded.dictionary.to_pylist()):
        try:
            written.append(write(value))
        except RowRefused:
            refused.append(number)
            written.append("null")
    if refused:
        marked |= np.isin(coded.indices.to_numpy(), refused)
    return pa.array(written, pa.string()).take(coded.indices)


def cents_of(array: pa.Array, places: int, marked: Marks) -> pa.Array:
    """Read amounts of the usual form as whole minor units; mark all others."""
    offsets, data = offsets_of(array), data_of(array)
    starts, stops = offsets[:-1], offsets[1:]
    data = data[: offsets[-1]]
    odd = np.flatnonzero((data < ord("0")) | (data > ord("9")))
    odd = odd[np.searchsorted(odd, offsets[0]) :]
    rows = np.searchsorted(offsets, odd, side="right") - 1
    signs, points = data[odd] == ord("-"), data[odd] == ord(".")
    wrong = ~(signs & (odd == starts[rows]))
    fraction = np.zeros(len(array), dtype=np.int64)
    digits = (stops - starts).astype(np.int64)
    digits[rows[signs]] -= 1
    if places and points.any():
        place, row = odd[points], rows[points]
        behind = stops[row] - place - 1
        begin = starts[row] + (data[starts[row]] == ord("-"))
        fits = (behind > 0) & (behind <= places) & (place > begin)
        fits[1:] &= row[1:] != row[:-1]
        wrong[np.flatnonzero(points)[fits]] = False
        fraction[row] = behind
        digits[row] -= 1
        array = pc.replace_substring(array, pattern=".", replacement="")
    own = np.zeros(len(array), dtype=bool)
    own[rows[wrong]] = True
    own |= (digits < 1) | (digits + places > PLAIN_DIGITS_MAX)
    marked |= own
    if own.any():
        array = pc.if_else(pa.array(own), "0", array)
    cents = array.cast(pa.int64())
    if not places:
        return cents
    power = 10 ** (places - np.where(own, places, fraction))
    return pa.array(cents.to_numpy() * power)
