"""``pgonce quarantine``: rejected rows, conflicts and failed events, to look at and to take out."""

from __future__ import annotations

from pathlib import Path

import click

from pgonce.api import quarantine as api
from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE
from pgonce.cli.options import Place, place_options, print_table
from pgonce.cli.printable import printable
from pgonce.engine.quarantine import KINDS, LISTED_ROWS, Quarantined

_job = click.option("--job", required=True, help="Name of the job.")
_run = click.option("--run", "run_id", type=click.IntRange(1, 2**63 - 1), help="Only this run.")
_kind = click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this kind; repeatable.")


@click.group("quarantine")
def quarantine() -> None:
    """See what needs a person: rejected rows, conflicts, and failed events."""


@quarantine.command("list")
@_job
@_run
@_kind
@click.option("--limit", type=int, default=LISTED_ROWS, show_default=True, help="Most rows to list.")
@place_options
def list_(*, place: Place, job: str, run_id: int | None, kinds: tuple[str, ...], limit: int) -> int:
    """List quarantined rows in the order of the inputs."""
    found = api.list_(job=job, run_id=run_id, kinds=kinds, limit=limit, **place.where())
    if place.as_json:
        place.print_json(
            {"version": 1, "job": job, "counts": dict(found.counts), "rows": [row.as_dict() for row in found.rows]}
        )
        return COMPLETE
    print_table(
        ("run", "line", "kind", "source", "id", "cents", "reason"),
        (
            (row.run_id, row.line, row.kind, row.source, row.event_id, row.amount_cents, printable(row.reason))
            for row in found.rows
        ),
    )
    total = sum(found.counts.values())
    if total > len(found.rows):
        place.tell(f"{len(found.rows)} of {total} rows are listed (--limit, or pgonce quarantine export)")
    return COMPLETE


@quarantine.command("show")
@click.argument("line", type=int)
@_job
@_run
@place_options
def show(*, place: Place, line: int, job: str, run_id: int | None) -> int:
    """Show all that is kept of LINE, with the row as it came. Exit code 3 if nothing is quarantined there."""
    found = api.show(line, job=job, run_id=run_id, **place.where())
    if place.as_json:
        place.print_json({"version": 1, "job": job, "rows": [row.as_dict(whole=True) for row in found]})
    for row in found if not place.as_json else []:
        for name, value in _described(row):
            click.echo(f"{name + ':':<10} {value}")
    if not found:
        where = f"run {run_id}" if run_id is not None else f"job {job}"
        place.tell(
            f"nothing is quarantined at line {line} of {where}; pgonce quarantine list --job {job} names what is"
        )
        return CHECK_FOUND_SOMETHING
    return COMPLETE


@quarantine.command("export")
@_job
@_run
@_kind
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option(
    "--format",
    "form",
    type=click.Choice(api.EXPORT_FORMS),
    default="ndjson",
    show_default=True,
    help="ndjson: what is wrong with each row, and the row. rows: as the input has them, to be corrected.",
)
@click.option("--like", type=click.Path(dir_okay=False, path_type=Path), help="File with the input's header, for rows.")
@place_options
def export(
    *,
    place: Place,
    job: str,
    run_id: int | None,
    kinds: tuple[str, ...],
    output: Path,
    form: str,
    like: Path | None,
) -> int:
    """Write quarantined rows to a file, as they came."""
    done = api.export(output, job=job, run_id=run_id, kinds=kinds, form=form, like=like, **place.where())
    if place.as_json:
        place.print_json(done.as_dict())
    written = ", ".join(f"{count} {kind}" for kind, count in done.rows.items() if count) or "no rows"
    place.tell(f"{output}: {written}")
    if done.cut_off:
        place.tell(f"{done.cut_off} rows are left out: they were too long to be kept whole. Take them from the input")
    if form == "rows" and done.rows["failed"] + done.rows["conflict"]:
        place.tell(
            "the ids of failed and conflicting rows are taken: amend a failed event (pgonce events amend), or give the "
            "corrected row an id of its own"
        )
    return COMPLETE


def _described(row: Quarantined) -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [
        ("run", row.run_id),
        ("line", row.line),
        ("kind", row.kind),
        ("reason", printable(row.reason)),
        ("kept", row.recorded_at),
    ]
    if row.event_id is not None:
        lines += [("source", row.source or "(empty)"), ("event", row.event_id)]
    if row.amount_cents is not None:
        lines.append(("amount", f"{row.amount_cents} cents"))
    if row.payload is not None:
        lines += [("payload", f"{name}: {printable(str(value))}") for name, value in row.payload.items()]
    if row.raw_text is not None:
        cut = f" (cut off at {len(row.raw or b'')} bytes)" if row.cut_off else ""
        lines.append((f"row{cut}", printable(row.raw_text)))
    return lines
