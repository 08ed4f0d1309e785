"""``pgonce status`` and ``pgonce runs``: how jobs and runs stand."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pgonce.api.status import runs as list_runs
from pgonce.api.status import status as find_status
from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE
from pgonce.cli.options import Place, place_options, print_table
from pgonce.engine.status import EVENT_STATES, FINDING_KINDS, RUNS_SHOWN, RUNS_SHOWN_MAX, JobStatus, RunStatus
from pgonce.model.outcome import RESULTS, Tally


@click.command("status")
@click.option("--job", help="Only this job. Default: all.")
@place_options
def status(*, place: Place, job: str | None) -> int:
    """Show every job with its events and findings, and the runs that are not finished."""
    jobs, unfinished = find_status(job, **place.where())
    if job is not None and not jobs:
        place.tell(f"there is no job {job!r}; pgonce job list names them")
        return CHECK_FOUND_SOMETHING
    if place.as_json:
        place.print_json(
            {
                "version": 1,
                "jobs": [found.as_dict() for found in jobs],
                "unfinished_runs": [found.as_dict() for found in unfinished],
            }
        )
        return COMPLETE
    print_table(("job", "state", "events", "cents"), (line for found in jobs for line in _job_lines(found)))
    if unfinished:
        click.echo()
        print_table(("run", "job", "input", "state", "settled", "not moved for"), map(_unfinished_line, unfinished))
    place.tell(f"jobs: {len(jobs)}, unfinished runs: {len(unfinished)}")
    return COMPLETE


@click.command("runs")
@click.option("--job", help="Only runs of this job. Default: all.")
@click.option(
    "--limit",
    type=click.IntRange(1, RUNS_SHOWN_MAX),
    default=RUNS_SHOWN,
    show_default=True,
    help="How many runs, the newest first.",
)
@place_options
def runs(*, place: Place, job: str | None, limit: int) -> int:
    """List runs, the newest first: what was read, how it stands and what it came to."""
    found = list_runs(job, limit=limit, **place.where())
    if place.as_json:
        place.print_json({"version": 1, "runs": [run.as_dict() for run in found]})
        return COMPLETE
    headers = ("run", "job", "kind", "input", "source", "state", "starts", "rows", "results", "begun", "finished")
    print_table(headers, map(_run_line, found))
    return COMPLETE


def _job_lines(found: JobStatus) -> Iterator[tuple[object, ...]]:
    shown = {name: found.events.get(name, Tally()) for name in EVENT_STATES}
    shown |= {name: found.findings.get(name, Tally()) for name in FINDING_KINDS}
    for name, tally in shown.items():
        if tally.rows or name == "completed":
            yield found.job, name, tally.rows, tally.cents


def _state(found: RunStatus) -> str:
    if found.state == "running":
        return f"running by {found.owner}"
    if found.state != "stopped":
        return found.state
    how = found.ended_how or f"{found.owner} is gone"
    return f"stopped: {how.removeprefix('stopped: ')}"


def _unfinished_line(found: RunStatus) -> tuple[object, ...]:
    share = f"line {found.lines}, {found.position_bytes} of {found.input_bytes} bytes"
    silent = "" if found.silent_s is None else f"{found.silent_s:.0f} s"
    return found.run_id, found.job, found.input_name, _state(found), share, silent


def _run_line(found: RunStatus) -> tuple[object, ...]:
    tallies = ((name, getattr(found.counts, name).rows) for name in RESULTS)
    results = ", ".join(f"{rows} {name}" for name, rows in tallies if rows)
    return (
        found.run_id,
        found.job,
        found.kind,
        found.input_name,
        found.source,
        _state(found),
        found.starts,
        found.counts.read.rows,
        results,
        f"{found.begun_at:%Y-%m-%d %H:%M:%S}",
        f"{found.finished_at:%Y-%m-%d %H:%M:%S}" if found.finished_at else "",
    )
