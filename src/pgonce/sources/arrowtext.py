"""Write the rows of an Arrow batch as lines of JSON, column by column: the text that a Parquet file stands for."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgonce.errors import ConfigurationError
from pgonce.sources.options import check_names
from pgonce.sources.parquet import Kind

# Text of 32-bit offsets ends at 2 GiB, which one batch of wide rows could reach.
TEXT = pa.large_binary()
_SPECIAL = np.zeros(256, dtype=bool)
_SPECIAL[:0x20] = True
_SPECIAL[[ord('"'), ord("\\")]] = True
_SPECIAL[0x80:] = True


def kind_of(type_: pa.DataType, name: str, column: str) -> Kind:
    """Say what a column of this type holds. Raises ConfigurationError for one that has no text."""
    if isinstance(type_, pa.BaseExtensionType):
        return kind_of(type_.storage_type, name, column)
    if pa.types.is_dictionary(type_):
        return kind_of(type_.value_type, name, column)
    for kind, tests in _SIMPLE.items():
        if any(test(type_) for test in tests):
            return kind
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "timestamp with offset"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return ["list", kind_of(type_.value_type, name, column)]
    if pa.types.is_map(type_) and kind_of(type_.key_type, name, column) == "text":
        return ["map", kind_of(type_.item_type, name, column)]
    if pa.types.is_struct(type_):
        check_names(tuple(field.name for field in type_), f"{name}, column {column}")
        return {field.name: kind_of(field.type, name, f"{column}.{field.name}") for field in type_}
    raise ConfigurationError(
        f"{name}: column {column!r} is of the type {type_}, which cannot be read; write it as text, or leave it out"
    )


_SIMPLE: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "null": (pa.types.is_null,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "integer": (pa.types.is_integer,),
    "decimal": (pa.types.is_decimal,),
    "boolean": (pa.types.is_boolean,),
    "float": (pa.types.is_floating,),
    "date": (pa.types.is_date,),
    "time": (pa.types.is_time,),
    "binary": (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_binary_view,
    ),
}


def lines(batch: pa.RecordBatch, kinds: dict[str, Kind]) -> bytes:
    """Write each row as an object with all its columns, in their order, and a line feed."""
    if not batch.num_rows:
        return b""
    parts: list[Any] = []
    before = "{"
    for number, (name, kind) in enumerate(kinds.items()):
        parts += [_constant(f"{before}{encode_basestring(name)}:"), text_of(batch.column(number), kind)]
        before = ","
    joined = pc.binary_join_element_wise(*parts, _constant("}\n"), _constant(""))
    return data_of(joined).tobytes()


def text_of(array: pa.Array, kind: Kind) -> pa.Array:
    """Write each value of an array as JSON, null as ``null``; the result is of the type TEXT."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(kind, dict):
        return _struct(array, kind)
    if isinstance(kind, list):
        return _nested(array, kind)
    if kind == "null":
        return pa.array([b"null"] * len(array), TEXT)
    return pc.fill_null(_WRITERS[kind](array), b"null")


def data_of(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the bytes of a text array, one value behind the other, without copying them."""
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64, count=len(array) + 1 + array.offset)[array.offset :]
    if data is None:
        return np.empty(0, dtype=np.uint8)
    return np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]


def _constant(text: str) -> pa.Scalar[Any]:
    return pa.scalar(text.encode("utf-8", "backslashreplace"), TEXT)


def _text(array: pa.Array) -> pa.Array:
    plain = array.cast(TEXT)
    if not _SPECIAL[data_of(plain)].any():
        return _quoted(plain)
    return _by_value(plain, _json_string)


def _json_string(value: bytes) -> bytes:
    """Write text as a JSON string; a byte that is not UTF-8 becomes half a surrogate pair, which no text holds."""
    return encode_basestring(value.decode("utf-8", "surrogateescape")).encode("utf-8", "backslashreplace")


def _quoted(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_constant('"'), array, _constant('"'), _constant(""))


def _by_value(array: pa.Array, write: Callable[[Any], bytes]) -> pa.Array:
    """Write each distinct value once."""
    coded = array.dictionary_encode()
    written = pa.array([write(value.as_py()) for value in coded.dictionary], TEXT)
    return written.take(coded.indices)


def _as_text(array: pa.Array) -> pa.Array:
    return array.cast(pa.large_string()).cast(TEXT)


def _decimal(array: pa.Array) -> pa.Array:
    """Write decimals with all their places; Arrow's own text has a power of ten in it where a value is small."""
    text = array.cast(pa.large_string())
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text.cast(TEXT)
    return pa.array([None if value is None else format(value, "f").encode() for value in array.to_pylist()], TEXT)


def _float(array: pa.Array) -> pa.Array:
    """Write floats with a power of ten, always, so that none can be taken for a decimal."""
    return pa.array([None if value is None else _float_text(float(value)) for value in array.to_pylist()], TEXT)


def _float_text(value: float) -> bytes:
    text = json.dumps(value)
    return (text if "e" in text or not text[-1].isdigit() else f"{text}e0").encode()


def _date(array: pa.Array) -> pa.Array:
    return _quoted(_as_text(array.cast(pa.date32())))


def _time(array: pa.Array) -> pa.Array:
    return _quoted(_trimmed(_as_text(array)))


def _timestamp(array: pa.Array) -> pa.Array:
    return _quoted(_trimmed(_moment(array)))


def _timestamp_with_offset(array: pa.Array) -> pa.Array:
    """Write moments in UTC. The offset of the column only says how it was meant to be shown."""
    utc = array.cast(pa.int64()).cast(pa.timestamp(array.type.unit))
    return pc.binary_join_element_wise(_constant('"'), _trimmed(_moment(utc)), _constant('Z"'), _constant(""))


def _moment(array: pa.Array) -> pa.Array:
    return pc.replace_substring(_as_text(array), pattern=b" ", replacement=b"T")


def _trimmed(array: pa.Array) -> pa.Array:
    """Cut the zeros at the end of a fraction of a second, and its point when nothing is left behind it."""
    text = array.cast(pa.large_string())
    with_fraction = pc.utf8_rtrim(pc.utf8_rtrim(text, characters="0"), characters=".")
    return pc.if_else(pc.match_substring(text, "."), with_fraction, text).cast(TEXT)


def _binary(array: pa.Array) -> pa.Array:
    return _by_value(array.cast(TEXT), lambda value: b'"' + base64.b64encode(value) + b'"')


def _struct(array: pa.Array, kinds: dict[str, Kind]) -> pa.Array:
    parts: list[Any] = []
    before = "{"
    for (name, kind), child in zip(kinds.items(), array.flatten(), strict=True):
        parts += [_constant(f"{before}{encode_basestring(name)}:"), text_of(child, kind)]
        before = ","
    if not parts:
        written = pa.array([b"{}"] * len(array), TEXT)
    else:
        written = pc.binary_join_element_wise(*parts, _constant("}"), _constant(""))
    return pc.if_else(array.is_valid(), written, _constant("null"))


def _nested(array: pa.Array, kind: list[Kind]) -> pa.Array:
    """Write a list as an array, a map as an object; the same name twice in it is found when the line is read."""
    if kind[0] == "map":
        names, values = _text(array.keys), text_of(array.items, kind[1])
        offsets = array.offsets.to_pylist()
        return _joined(array, pc.binary_join_element_wise(names, values, _constant(":")), offsets, b"{", b"}")
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    return _joined(array, text_of(array.values, kind[1]), array.offsets.to_pylist(), b"[", b"]")


def _joined(array: pa.Array, items: pa.Array, offsets: list[int], begin: bytes, end: bytes) -> pa.Array:
    first = offsets[0]
    texts = items.slice(first, offsets[-1] - first).to_pylist()
    written = [
        begin + b",".join(texts[offset - first : following - first]) + end if valid else b"null"
        for offset, following, valid in zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
    ]
    return pa.array(written, TEXT)


_WRITERS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "text": _text,
    "integer": _as_text,
    "boolean": _as_text,
    "decimal": _decimal,
    "float": _float,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamp with offset": _timestamp_with_offset,
    "binary": _binary,
}
