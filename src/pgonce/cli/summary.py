"""The summary at the end of a run: every result in rows and money, for this start and for the whole run."""

from __future__ import annotations

import shlex

import click

from pgonce.cli.options import Place, print_table
from pgonce.cli.streams import say
from pgonce.engine.dryrun import NOT_UNDONE
from pgonce.model.outcome import RESULTS, Counts
from pgonce.model.report import RunReport


def print_report(place: Place, report: RunReport, *, dry_run: bool = False, only_messages: bool = False) -> None:
    """Print a run's report: JSON, or a table with control totals; notes go to stderr.

    ``only_messages`` keeps standard output free for a row report.
    """
    for note in report.notes:
        place.tell(note)
    words = _rehearsed(report) if dry_run else _verdict(place, report)
    if place.as_json:
        place.print_json(report.as_dict() | ({"dry_run": True, "not_undone": list(NOT_UNDONE)} if dry_run else {}))
    elif not place.quiet and not only_messages:
        _print_counts(report, dry_run=dry_run)
    if report.exit_code:
        say(words)
    else:
        place.tell(words)


def _print_counts(report: RunReport, *, dry_run: bool) -> None:
    what = "recognised as finished" if report.shortcut else f"start {report.epoch}"
    title = f"job {report.job}, run {report.run_id} ({what}): {report.input_name}, checkpoint {report.checkpoint}"
    if dry_run:
        title = f"{title}, dry run: rolled back"
    click.echo(title)
    print_table(("result", "this start", "cents", "whole run", "cents"), _lines(report.start, report.run))


def _rehearsed(report: RunReport) -> str:
    return (
        f"dry run: everything was rolled back and nothing is stored; the run would exit {report.exit_code}. A rollback "
        f"does not undo {'; '.join(NOT_UNDONE)}. NOTIFY was not sent"
    )


def _lines(start: Counts, whole: Counts) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = []
    for name in (*RESULTS, "read"):
        one, all_ = getattr(start, name), getattr(whole, name)
        if one.rows or all_.rows or name in ("applied", "already", "read"):
            lines.append((name, one.rows, one.cents, all_.rows, all_.cents))
    return lines


def _verdict(place: Place, report: RunReport) -> str:
    whole = report.run
    if whole.pending.rows:
        return _pending(place, report)
    bad = [(name, getattr(whole, name).rows) for name in ("failed", "conflict", "rejected")]
    if report.exit_code:
        total = sum(rows for _, rows in bad)
        named = ", ".join(f"{rows} {name}" for name, rows in bad if rows)
        return (
            f"{_many(total, 'row')} for a person to look at: {named}; every other row is applied once. See pgonce "
            f"quarantine list --job {shlex.quote(report.job)}{place.words}"
        )
    if not whole.read.rows:
        return "complete; the input has no rows"
    if report.start.applied.rows or report.start.adopted.rows:
        return "complete; running it again changes nothing"
    return "complete; everything was applied already, nothing was changed"


def _pending(place: Place, report: RunReport) -> str:
    """Say what is pending, and whether the next start tries it or somebody has to grant it more attempts."""
    job = f"--job {shlex.quote(report.job)}"
    rows = f"{_many(report.run.pending.rows, 'event')} pending, every other row is settled; running again is safe"
    if not report.used_up:
        return (
            f"{rows} and tries what has attempts left. What failed and why: pgonce events list {job} --status pending"
            f"{place.words}"
        )
    many = _many(report.used_up, "pending event")
    return (
        f"{rows}. A person is needed: {many} of this job used up the attempts of all starts, and no start tries "
        f"them before they are granted more: pgonce retry --pending {job} --why TEXT{place.words}"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
