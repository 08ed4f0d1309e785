"""Measure how fast CSV becomes rows: plain pyarrow, columns, and row by row, interleaved in one run.

Plain pyarrow only splits the file into columns of text; the other two find identity, amount and payload of every row,
its line, and the digest of what was read. Wall-clock time is disturbed by whatever else the machine does, so the CPU
seconds of this process are measured, and the median of the rounds is printed. Nothing here uses a second thread.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from pgonce.model.cursor import Cursor
from pgonce.model.definition import Definition
from pgonce.model.record import Filler
from pgonce.model.row import RowReader
from pgonce.sources import open_input
from pgonce.sources.columns import BLOCK_BYTES, column_blocks

HEADER = ("payment_id", "account", "amount_cents", "currency", "booked_at", "note")
DEFINITION = Definition(key=("payment_id",), amount="amount_cents")
FILES = ("clean", "all quoted", "1 % bad rows")


def write_file(path: Path, rows: int, kind: str) -> None:
    """Write payments of six columns; of the bad ones the amount is no number."""
    quoting = csv.QUOTE_ALL if kind == "all quoted" else csv.QUOTE_MINIMAL
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=quoting)
        writer.writerow(HEADER)
        for number in range(rows):
            amount: object = number % 100_000
            if kind == "1 % bad rows" and number % 100 == 99:
                amount = "n/a"
            day = f"2026-11-{number % 30 + 1:02d}T07:{number % 60:02d}:00Z"
            writer.writerow(
                (f"P-{number:09d}", f"acct-{number * 7919 % 100_000}", amount, "EUR", day, f"note {number}")
            )


def by_pyarrow(path: Path) -> int:
    """Split into columns of text, and nothing else."""
    reader = pyarrow.csv.open_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(HEADER, pa.string())),
    )
    return sum(batch.num_rows for batch in reader)


def by_columns(path: Path) -> int:
    """Read as blocks of columns."""
    with open_input(path) as source:
        reader = RowReader(DEFINITION.resolved(source.columns), "")
        return sum(block.rows + len(block.findings) for block in column_blocks(source, reader, Cursor.start()))


def by_row(path: Path) -> int:
    """Read row by row, as every row is defined to be read."""
    with open_input(path) as source:
        reader = RowReader(DEFINITION.resolved(source.columns), "")
        rows, cursor = 0, Cursor.start()
        for piece in source.pieces():
            cursor = cursor.advance(piece.raw)
            if not isinstance(piece, Filler):
                reader.read(piece)
                rows += 1
        return rows


WAYS: dict[str, Callable[[Path], int]] = {"plain pyarrow": by_pyarrow, "columns": by_columns, "row by row": by_row}


def measure(path: Path, rows: int, rounds: int) -> dict[str, float]:
    """Return the median of rows per CPU second of each way."""
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, read in WAYS.items():
            begin = time.process_time()
            count = read(path)
            rates[name].append(count / (time.process_time() - begin))
            if count != rows:
                sys.exit(f"{name} found {count} rows instead of {rows}")
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    """Write the files, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| rows per CPU second, one thread | " + " | ".join(WAYS) + " |")
    print("|---|" + "---|" * len(WAYS))
    with tempfile.TemporaryDirectory() as folder:
        for kind in FILES:
            path = Path(folder) / "payments.csv"
            write_file(path, options.rows, kind)
            found = measure(path, options.rows, options.rounds)
            print(f"| {kind} | " + " | ".join(f"{rate / 1e6:.2f}M" for rate in found.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
