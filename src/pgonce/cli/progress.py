"""Progress on a terminal: rows and bytes done, results, retries, rate and time left. On stderr, and only there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pgonce.cli.options import Place
from pgonce.model.cursor import Position
from pgonce.model.observer import Observer, Silent, Step


@contextmanager
def progress(place: Place) -> Iterator[Observer]:
    """Show progress while the body runs, where there is a terminal and nobody asked for quiet."""
    if place.quiet or place.as_json or not sys.stderr.isatty():
        yield _Verbose(place) if place.verbose else Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        yield _Bar(bar)


class _Bar:
    """Draws a run as a bar over the bytes of its input."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task: Any = None
        self._rows: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()

    def began(self, input_name: str, input_bytes: int, position: Position) -> None:
        self._task = self._bar.add_task(input_name, total=input_bytes, completed=position.offset, words="")

    def committed(self, step: Step) -> None:
        for name in ("rows", "applied", "already", "failed", "conflict", "rejected", "pending"):
            self._rows[name] += getattr(step, name)
        self._bar.update(self._task, completed=step.position.offset, words=self._words())

    def retried(self, sqlstate: str | None, reason: str) -> None:
        self._retried[sqlstate or "connection"] += 1
        self._bar.update(self._task, words=self._words())

    def _words(self) -> str:
        elapsed_s = self._bar.tasks[0].elapsed or 0.0
        rate = f"{self._rows['rows'] / elapsed_s:,.0f} rows/s" if elapsed_s > 0 else ""
        counts = [f"{self._rows[name]:,} {name}" for name in ("rows", "applied", "already") if self._rows[name]]
        bad = [
            f"{self._rows[name]:,} {name}" for name in ("failed", "conflict", "rejected", "pending") if self._rows[name]
        ]
        retries = [f"{count} retried on {code}" for code, count in sorted(self._retried.items())]
        return ", ".join([*counts, *bad, *retries, rate])


class _Verbose:
    """Tells each chunk in a line."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def began(self, input_name: str, input_bytes: int, position: Position) -> None:
        self._place.tell(
            f"{input_name}: {input_bytes} bytes, going on from byte {position.offset} (line {position.lines})"
        )

    def committed(self, step: Step) -> None:
        self._place.tell(
            f"committed {step.rows} rows up to line {step.position.lines}: {step.applied} applied, {step.already} "
            f"already, {step.failed} failed, {step.conflict} conflict, {step.rejected} rejected, {step.pending} pending"
        )

    def retried(self, sqlstate: str | None, reason: str) -> None:
        self._place.tell(f"trying the chunk again: {reason}")
