"""What a source yields: records, malformed records, and bytes that carry no record.

Together the ``raw`` bytes of everything a source yields, in order, are exactly the decompressed bytes of the input
from where the reading began. The engine hashes and counts them; that is how a position is known and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)  # one is made for each row: frozen, that takes twice as long
class Record:
    """One record that could be parsed.

    ``line`` is the number (from 1) of the physical line it begins on; ``raw`` its bytes with the line end; ``fields``
    its values by column name: ``str`` for CSV and TSV, JSON values for NDJSON, CloudEvents and Parquet (numbers as
    ``int`` or ``decimal.Decimal``; only a Parquet column of floats or of bytes gives ``float`` or ``bytes``). Where an
    input has no lines, ``line`` is the number of the row.
    """

    line: int
    raw: bytes
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Malformed:
    """One record that could not be parsed; ``reason`` is a plain sentence.

    ``raw`` is what it consumed, or its last part, if the earlier ones came as `Filler` to keep memory constant.
    """

    line: int
    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Filler:
    """Bytes without a record: header, blank lines, or the earlier part of a skipped record, whose `Malformed` follows.

    Do not store a position right behind a filler, except at the end of the input: what follows may belong to it.
    """

    raw: bytes


Piece = Record | Malformed | Filler
