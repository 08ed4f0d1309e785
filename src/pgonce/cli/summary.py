"""The summary at the end of a run: every result in rows and money, for this start and for the whole run."""

from __future__ import annotations

import click

from pgonce.cli.options import Place, print_table
from pgonce.model.outcome import RESULTS, Counts
from pgonce.model.report import RunReport


def print_report(place: Place, report: RunReport) -> None:
    """Print a run's report: JSON, or a table with control totals; notes go to stderr."""
    for note in report.notes:
        place.tell(note)
    if place.as_json:
        place.print_json(report.as_dict())
        return
    what = "recognised as finished" if report.shortcut else f"start {report.epoch}"
    title = f"job {report.job}, run {report.run_id} ({what}): {report.input_name}, checkpoint {report.checkpoint}"
    if not place.quiet:
        click.echo(title)
        print_table(("result", "this start", "cents", "whole run", "cents"), _lines(report.start, report.run))
    place.tell(_verdict(report))


def _lines(start: Counts, whole: Counts) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = []
    for name in (*RESULTS, "read"):
        one, all_ = getattr(start, name), getattr(whole, name)
        if one.rows or all_.rows or name in ("applied", "already", "read"):
            lines.append((name, one.rows, one.cents, all_.rows, all_.cents))
    return lines


def _verdict(report: RunReport) -> str:
    whole = report.run
    if whole.pending.rows:
        return f"{whole.pending.rows} events are pending with their attempts used up; running again is safe"
    bad = whole.failed.rows + whole.conflict.rows + whole.rejected.rows
    if bad:
        return (
            f"{bad} rows failed for good; every other row is applied once. See them: pgonce quarantine list --job "
            f"{report.job}"
        )
    if report.start.applied.rows or report.start.adopted.rows:
        return "complete; running it again changes nothing"
    return "complete; everything was applied already, nothing was changed"
