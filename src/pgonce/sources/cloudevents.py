"""Read CloudEvents in their JSON format, structured: one event, one event a line, or a batch as one array.

An event's attributes come as the fields ``ce_id``, ``ce_source``, ``ce_type`` and so on, the members of its data as
fields of their own names; data that is no object is the field ``ce_data``. What only says how it was packed
(``specversion``, ``datacontenttype``) is no field. An event is identified by its source and its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from pgonce.model.record import Filler, Malformed, Piece, Record
from pgonce.sources.blocks import BOM, MAX_RECORD_BYTES, Block
from pgonce.sources.jsonarray import ArrayReader
from pgonce.sources.jsontext import NotARecord, exact_decoder, parse_object
from pgonce.sources.ndjson import BLANK, Fields, pieces_of_lines
from pgonce.sources.options import ReadingOptions
from pgonce.sources.skipping import Skipped

SPEC_VERSION = "1.0"
ID, SOURCE, DATA, PREFIX = "ce_id", "ce_source", "ce_data", "ce_"

_REQUIRED = ("id", "source", "type")
_PACKING = ("specversion", "datacontenttype", "data", "data_base64")
_NAME = re.compile(r"[a-z0-9]+")
_FIRST_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*(?:\[[ \t\r\n]*)?\{")


def looks_like_events(head: bytes) -> bool:
    """Say whether the first bytes of an input are those of CloudEvents."""
    return b'"specversion"' in head and _FIRST_OBJECT.match(head) is not None


class CloudEvents:
    """The CloudEvents format of one input. It has no columns: every event names its own.

    The line of an event in a batch is its number in the array. A batch has no line to go on from, so it is always read
    from its beginning (``by_line`` is False).
    """

    identity = (SOURCE, ID)

    def __init__(self, form: str) -> None:
        self.columns: tuple[str, ...] | None = None
        self.form = form
        self.by_line = form != "batch"

    @classmethod
    def open(cls, blocks: Iterator[Block], options: ReadingOptions, name: str) -> CloudEvents:
        """Tell by the beginning of the input whether it is an array, one event over many lines, or an event a line."""
        head, whole = _head(blocks)
        text = head.removeprefix(BOM).lstrip(BLANK)
        if text.startswith(b"["):
            return cls("batch")
        lines = [line for line in text.split(b"\n") if line.strip(BLANK)]
        if len(lines) > 1 and not _is_json(lines[0]):
            others = any(line.startswith(b"{") for line in lines[1:])
            if not others or (whole and _is_json(text)):
                return cls("single")
        return cls("lines")

    def pieces(self, blocks: Iterator[Block], *, offset: int, lines: int) -> Iterator[Piece]:
        """Yield the pieces of ``blocks``, which begin at ``offset`` behind ``lines`` line feeds."""
        decode = exact_decoder()
        if self.form == "lines":
            return pieces_of_lines(blocks, offset=offset, lines=lines, decode=decode, fields_of=fields_of)

        def piece_of(raw: bytes, number: int) -> Piece:
            text = raw.removeprefix(BOM).strip(BLANK)
            line = 1 if self.form == "batch" else number
            try:
                fields = parse_object(text, shift=raw.index(text), line=line, decode=decode)
                return Record(number, raw, fields_of(fields))
            except NotARecord as refused:
                if refused.broken and self.form == "batch":
                    raise
                return Malformed(number, raw, str(refused))

        if self.form == "batch":
            return ArrayReader(blocks, piece_of).pieces()
        return _single(blocks, lines + 1, piece_of)


def _head(blocks: Iterator[Block]) -> tuple[bytes, bool]:
    """Read up to the size of the largest record; say whether that was everything."""
    parts, size = [], 0
    for block in blocks:
        parts.append(block.body)
        size += len(block.body)
        if size > MAX_RECORD_BYTES:
            return b"".join(parts), False
    return b"".join(parts), True


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _single(blocks: Iterator[Block], line: int, piece_of: Callable[[bytes, int], Piece]) -> Iterator[Piece]:
    raw, whole = _head(blocks)
    if not whole:
        skipped = Skipped()
        yield from skipped.add(raw)
        for block in blocks:
            yield from skipped.add(block.body)
        yield Malformed(line, skipped.rest(), f"the event is longer than {MAX_RECORD_BYTES} bytes")
    elif raw.strip(BLANK):
        yield piece_of(raw, line)
    elif raw:
        yield Filler(raw)


def fields_of(event: Fields) -> Fields:
    """Make the fields of a record of an event. Raises NotARecord with a plain reason for one that is not whole."""
    event = {name: value for name, value in event.items() if value is not None}
    if "specversion" not in event:
        raise NotARecord("is not a CloudEvent: it has no specversion")
    if event["specversion"] != SPEC_VERSION:
        shown = json.dumps(event["specversion"], default=str)[:40]
        raise NotARecord(f"is a CloudEvent of specversion {shown}; only {SPEC_VERSION} is known")
    for name in _REQUIRED:
        value = event.get(name)
        if value is None:
            raise NotARecord(f"has no {name}, which every CloudEvent needs")
        if not isinstance(value, str) or not value:
            raise NotARecord(f"the attribute {name} is not a text of at least one character")
    if "data_base64" in event:
        raise NotARecord("its data is binary (data_base64), which has no fields; have it sent as JSON data")
    fields: Fields = {}
    for name, value in event.items():
        if name in _PACKING:
            continue
        _check_attribute(name, value)
        fields[PREFIX + name] = value
    data = event.get("data")
    if isinstance(data, dict):
        for name in data:
            if name.startswith(PREFIX):
                raise NotARecord(f"its data has the member {name[:40]!r}; {PREFIX} begins the names of attributes")
        return fields | data
    return fields if data is None else fields | {DATA: data}


def _check_attribute(name: str, value: object) -> None:
    if not _NAME.fullmatch(name):
        raise NotARecord(f"has the attribute {name[:40]!r}; names of attributes are lower-case letters and digits")
    if not isinstance(value, str | bool | int):
        raise NotARecord(f"the attribute {name} is not a text, a whole number or a truth value")


def event_of(fields: Mapping[str, object]) -> dict[str, object]:
    """Put an event together from the fields of a record, as far as they were kept."""
    attributes = {name.removeprefix(PREFIX): value for name, value in fields.items() if name.startswith(PREFIX)}
    data: object = attributes.pop(DATA.removeprefix(PREFIX), None)
    members = {name: value for name, value in fields.items() if not name.startswith(PREFIX)}
    return {"specversion": SPEC_VERSION, **attributes, "data": members or data}
