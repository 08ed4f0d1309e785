"""The input of a benchmark: a CSV file of six columns, and the same rows as the bytes that COPY takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pgonce.engine.batch import RowBatch, Stamp
from pgonce.model.cursor import Cursor
from pgonce.model.definition import Definition
from pgonce.model.row import Row, RowReader
from pgonce.sources import open_input

JOB = "bench"

HEADER = "payment_id,amount_cents,booked_at,account,currency,note\n"

# What the copies of the floor and the chunks of a run take at a time.
CHUNK_ROWS = 10_000

DEFINITION = Definition(key=("payment_id",), amount="amount_cents")


@dataclass(frozen=True, slots=True)
class Input:
    """A file, how many rows it has, and how its ids run: ``in order`` or ``random``."""

    path: Path
    rows: int
    ids: str


def write_input(folder: Path, rows: int, ids: str, *, new_of_hundred: int = 0) -> Input:
    """Write a file; of ``new_of_hundred`` rows out of a hundred the ids are not those of the file without it."""
    path = folder / f"{rows}-{ids.replace(' ', '-')}-{new_of_hundred}.csv"
    name = _namer(rows, ids)
    with path.open("w", encoding="utf-8") as file:
        file.write(HEADER)
        for number in range(rows):
            mark = "N" if new_of_hundred and number % 100 < new_of_hundred else ""
            file.write(
                f"{name(number)}{mark},{number % 100_000},2026-11-{1 + number % 28:02},"
                f"account {number % 5000},EUR,instalment {number % 36}\n"
            )
    return Input(path, rows, ids)


def _namer(rows: int, ids: str) -> Callable[[int], str]:
    if ids == "in order":
        return lambda number: f"PAY-{number:010}"
    drawn = random.Random(rows).sample(range(10**10), rows)  # noqa: S311 - the same ids every time
    return lambda number: f"PAY-{drawn[number]:010}"


def premade(source: Input, *, is_sorted: bool) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Give the rows as COPY takes them, a pair of events and effects a chunk, in file order or in key order."""
    with open_input(source.path) as opened:
        reader = RowReader(DEFINITION.resolved(opened.columns), "")
        pieces = opened.pieces(Cursor.start().position)
        rows = [row for piece in pieces if isinstance(row := _read(reader, piece), Row)]
    if is_sorted:
        rows.sort(key=lambda row: row.event_id)
    stamp = Stamp(job=JOB, run_id=1, epoch=1, adopted=False)
    for start in range(0, len(rows), CHUNK_ROWS):
        batch = RowBatch(rows[start : start + CHUNK_ROWS])
        yield list(batch.events(stamp)), list(batch.effects(stamp))


def _read(reader: RowReader, piece: object) -> object:
    return reader.read(piece) if hasattr(piece, "fields") else None
