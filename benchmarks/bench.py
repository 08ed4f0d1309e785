"""`make bench`: measure, print, and write the tables of benchmarks/README.md."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from benchmarks import actions
from benchmarks.inputs import Input, write_input
from benchmarks.measure import Bench, Line, Measured, interleaved
from pgonce import server

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- tables: written by `make bench` -->\n", "<!-- end of tables -->\n"

# One transaction an event costs a flush of the disk each: more rows would only take longer.
ITEM_ROWS_MAX = 1_000

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB"}

Actions = dict[str, Callable[[], Measured]]


def tables(bench: Bench, folder: Path, rows: int, rounds: int, only: str) -> Iterator[tuple[str, list[Line]]]:
    """Measure everything for one size; yield each table when it is there."""
    in_order, random = (write_input(folder, rows, ids) for ids in ("in order", "random"))
    few = write_input(folder, min(rows, ITEM_ROWS_MAX), "in order")
    for title, floor, measured in (
        (f"{rows:,} rows, ids in order", "floor", _of(bench, folder, in_order)),
        (f"{rows:,} rows, random ids", "floor, sorted by id", _of_random(bench, random)),
        (f"{few.rows:,} rows, a commit a row", "bare loop of inserts", _of_items(bench, few)),
    ):
        chosen = {name: action for name, action in measured.items() if name == floor or only in f"{title}: {name}"}
        if len(chosen) > 1:
            yield title, interleaved(rounds, floor, chosen)


def _of(bench: Bench, folder: Path, source: Input) -> Actions:
    rows, before = source.rows, (actions.ours, source, {})
    some_new = write_input(folder, rows, "in order", new_of_hundred=1)
    whole, two = {"limits": {"checkpoint": "all"}}, {"limits": {"workers": 2}}
    return {
        "floor": lambda: bench.measure(rows, actions.floor, source, False),
        "pgonce run": lambda: bench.measure(rows, actions.ours, source, {}),
        "pgonce run --workers 2": lambda: bench.measure(rows, actions.ours, source, two),
        "pgonce run, one transaction": lambda: bench.measure(rows, actions.ours, source, whole),
        "pgonce run, SQL effect": lambda: bench.measure(rows, actions.ours_with_effect, source, folder),
        "pgonce run, SQL effect, --workers 2": lambda: bench.measure(
            rows, actions.ours_with_effect, source, folder, two
        ),
        "replay, reading every row": lambda: bench.measure(rows, actions.replay, source, before=before),
        "1 % new among replayed": lambda: bench.measure(rows, actions.ours, some_new, {}, before=before),
        "1 % new among replayed, --workers 2": lambda: bench.measure(rows, actions.ours, some_new, two, before=before),
        "finished file again": lambda: bench.measure(rows, actions.finished, source, before=before),
    }


def _of_random(bench: Bench, source: Input) -> Actions:
    rows, before = source.rows, (actions.ours, source, {})
    two = {"limits": {"workers": 2}}
    return {
        "floor, sorted by id": lambda: bench.measure(rows, actions.floor, source, True),
        "floor, in file order": lambda: bench.measure(rows, actions.floor, source, False),
        "pgonce run": lambda: bench.measure(rows, actions.ours, source, {}),
        "pgonce run --workers 2": lambda: bench.measure(rows, actions.ours, source, two),
        "replay, reading every row": lambda: bench.measure(rows, actions.replay, source, before=before),
        "replay, --workers 2": lambda: bench.measure(rows, actions.replay, source, two, before=before),
    }


def _of_items(bench: Bench, source: Input) -> Actions:
    rows, item = source.rows, {"limits": {"checkpoint": "item"}}
    return {
        "bare loop of inserts": lambda: bench.measure(rows, actions.loop, source),
        "pgonce run --checkpoint item": lambda: bench.measure(rows, actions.ours, source, item),
    }


def written(title: str, lines: list[Line]) -> str:
    """Write a table in Markdown."""
    names = (
        "| | rows/s | of the floor | CPU of the client, us a row | of the server | WAL bytes a row "
        "| peak of the client, MiB |\n|---|--:|--:|--:|--:|--:|--:|\n"
    )
    return f"### {title}\n\n{names}" + "".join(
        f"| {line.name} | {line.rate:,.0f} | {line.ratio:.2f} | {line.client_us:.1f} | {line.server_us:.1f} "
        f"| {line.wal_bytes:,.0f} | {line.peak_mib:,.0f} |\n"
        for line in lines
    )


def where(dsn: str, rounds: int) -> str:
    """Say on what it was measured."""
    with psycopg.connect(dsn) as connection:
        [(version,)] = connection.execute("show server_version").fetchall()
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    settings = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, PostgreSQL {version} over a Unix socket, Python "
        f"{platform.python_version()}; fsync and synchronous_commit on, {settings}; medians of {rounds}, in turn, each "
        f"on fresh tables after a checkpoint. Load of the machine over 1, 5 and 15 minutes at the end: {load}.\n"
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Measure pgonce beside bare COPY; writes benchmarks/README.md.")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only", default="", help="what a measurement's name has to contain, beside the floor's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="print only, leave README.md as it is")
    given = parser.parse_args()
    with server.scratch(settings=SETTINGS) as scratch, tempfile.TemporaryDirectory(prefix="pgonce-bench-") as folder:
        bench = Bench(scratch.dsn, scratch.postmaster_pid)
        parts = []
        for rows in given.rows:
            for title, lines in tables(bench, Path(folder), rows, given.rounds, given.only):
                parts.append(written(title, lines))
                print(parts[-1], flush=True)
        parts.insert(0, where(scratch.dsn, given.rounds))
    if not given.keep:
        write_between(BEGIN, "\n".join(parts), END)


def write_between(begin: str, text: str, end: str) -> None:
    """Put a text between two marks of README.md."""
    before, _, rest = README.read_text(encoding="utf-8").partition(begin)
    README.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
