"""Write whole columns as the rows of PostgreSQL's binary COPY format.

A row is a count of fields, and for each its length and its bytes. What is as wide in every row (counts, lengths,
numbers, constants) is laid side by side in one matrix between two texts, and the pieces of all rows are joined at once.
The format is that of PostgreSQL's documentation of COPY, "Binary Format"; all numbers are in network byte order.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
TRAILER = struct.pack("!h", -1)

# Fields of a row are counted in 16 bits.
COLUMNS_MAX = 1600

_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_NULL = -1
_WIDTHS = {pa.int16(): 2, pa.int32(): 4, pa.int64(): 8}

Matrix = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in every row, as its binary form; None is null."""

    value: bytes | None

    @property
    def field(self) -> bytes:
        """The value with its length, as it stands in a row."""
        if self.value is None:
            return struct.pack("!i", _NULL)
        return struct.pack("!i", len(self.value)) + self.value


NULL = Constant(None)


def text(value: str) -> Constant:
    """Return a constant of the type text."""
    return Constant(value.encode())


def bigint(value: int) -> Constant:
    """Return a constant of the type bigint."""
    return Constant(struct.pack("!q", value))


def integer(value: int) -> Constant:
    """Return a constant of the type integer."""
    return Constant(struct.pack("!i", value))


def boolean(value: bool) -> Constant:
    """Return a constant of the type boolean."""
    return Constant(struct.pack("!?", value))


def timestamptz(value: dt.datetime) -> Constant:
    """Return a constant of the type timestamptz. ``value`` has an offset."""
    return Constant(struct.pack("!q", (value - _EPOCH) // dt.timedelta(microseconds=1)))


Column: TypeAlias = "pa.Array | Constant"
"""An array of text (text), binary (bytea), bool (boolean), or 16, 32 or 64 bit integers (smallint to bigint)."""


def rows(columns: Sequence[Column], count: int) -> bytes:
    """Write ``count`` rows of these columns, without header and trailer.

    Raises ValueError for an array of another type or length. Safe to re-run: a pure function.
    """
    if not 0 < len(columns) <= COLUMNS_MAX:
        raise ValueError(f"a row of {len(columns)} columns cannot be copied")
    if not count:
        return b""
    pieces = _Pieces(count)
    pieces.constant(struct.pack("!h", len(columns)))
    for column in columns:
        if isinstance(column, Constant):
            pieces.constant(column.field)
            continue
        if len(column) != count:
            raise ValueError(f"an array of {len(column)} values is none of {count} rows")
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            pieces.varying(column.cast(pa.binary()))
        elif column.null_count:
            pieces.varying(_binary(_fixed(column.fill_null(_zero(column.type))), column.is_valid()))
        else:
            fixed = _fixed(column)
            pieces.constant(struct.pack("!i", fixed.shape[1]))
            pieces.matrix(fixed)
    return pieces.joined()


def whole(columns: Sequence[Column], count: int) -> bytes:
    """Write everything one COPY takes: header, rows, trailer. Safe to re-run: a pure function."""
    return b"".join((HEADER, rows(columns, count), TRAILER))


def elements(array: pa.Array) -> bytes:
    """Write an array of text or 64-bit integers as the elements of a binary array: each its length, then its bytes.

    Safe to re-run: a pure function.
    """
    if not len(array):
        return b""
    pieces = _Pieces(len(array))
    if pa.types.is_string(array.type):
        pieces.varying(array.cast(pa.binary()))
    else:
        fixed = _fixed(array)
        pieces.constant(struct.pack("!i", fixed.shape[1]))
        pieces.matrix(fixed)
    return pieces.joined()


def key_order(source: pa.Array, event_id: pa.Array) -> pa.Array | None:
    """Return the order of rows by source and then by id, bytewise, as indices; None if it is the order they have.

    Rows of the same key stay in their order. Safe to re-run: a pure function.
    """
    if len(event_id) < 2:
        return None
    if pc.all(pc.equal(source, source[0])).as_py():
        if pc.all(pc.less_equal(event_id[:-1], event_id[1:])).as_py():
            return None
        return pc.sort_indices(event_id)
    table = pa.table({"source": source, "event_id": event_id})
    order = pc.sort_indices(table, sort_keys=[("source", "ascending"), ("event_id", "ascending")])
    return None if (np.diff(order.to_numpy().astype(np.int64)) == 1).all() else order


def ordered(columns: Iterable[Column], order: pa.Array | None) -> list[Column]:
    """Bring the arrays among columns into an order from `key_order`. Safe to re-run: a pure function."""
    if order is None:
        return list(columns)
    return [column if isinstance(column, Constant) else column.take(order) for column in columns]


class _Pieces:
    """The pieces of all rows: matrices of what is as wide in every row, and between them arrays of what is not."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pieces: list[pa.Array] = []
        self._fixed: list[Matrix] = []

    def constant(self, value: bytes) -> None:
        one = np.frombuffer(value, dtype=np.uint8)
        self._fixed.append(np.broadcast_to(one, (self._count, len(one))))

    def matrix(self, fixed: Matrix) -> None:
        self._fixed.append(fixed)

    def varying(self, array: pa.Array) -> None:
        """Add the length of each value, and the value; a null has a length of -1 and no bytes."""
        sizes = np.diff(_offsets(array)).astype(np.int32)
        if array.null_count:
            valid = np.asarray(array.is_valid())
            sizes = np.where(valid, sizes, np.int32(_NULL))
            array = array.fill_null(b"")
        self._fixed.append(_big_endian(sizes, 4))
        self._close()
        self._pieces.append(array)

    def joined(self) -> bytes:
        self._close()
        joined = pc.binary_join_element_wise(*self._pieces, b"") if len(self._pieces) > 1 else self._pieces[0]
        offsets = _offsets(joined)
        return bytes(memoryview(joined.buffers()[2])[int(offsets[0]) : int(offsets[-1])])

    def _close(self) -> None:
        if self._fixed:
            self._pieces.append(_binary(np.concatenate(self._fixed, axis=1)))
            self._fixed = []


def _offsets(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + array.offset + 1)[array.offset :]


def _zero(type_: pa.DataType) -> object:
    return False if pa.types.is_boolean(type_) else 0


def _fixed(array: pa.Array) -> Matrix:
    """Return the bytes of numbers, a row each."""
    if pa.types.is_boolean(array.type):
        return np.asarray(array.cast(pa.uint8())).reshape(-1, 1)
    if array.type not in _WIDTHS:
        raise ValueError(f"an array of the type {array.type} cannot be copied")
    return _big_endian(array.to_numpy(), _WIDTHS[array.type])


def _big_endian(numbers: np.ndarray[Any, Any], width: int) -> Matrix:
    return np.ascontiguousarray(numbers.astype(f">i{width}")).view(np.uint8).reshape(-1, width)


def _binary(fixed: Matrix, valid: pa.Array | None = None) -> pa.Array:
    """Make an array of values that are all as wide; where not ``valid``, null."""
    count, width = fixed.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(fixed)
    array = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return array if valid is None else pc.if_else(valid, array, pa.scalar(None, pa.binary()))
