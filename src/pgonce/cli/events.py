"""``pgonce events``: look at stored events, reopen and amend them."""

from __future__ import annotations

from typing import Any

import click

from pgonce.api import events as api
from pgonce.cli.exits import COMPLETE
from pgonce.cli.options import Place, place_options, print_table
from pgonce.cli.printable import printable
from pgonce.engine.amend import Changed, json_value
from pgonce.engine.events import LISTED_EVENTS, STATUSES, Event
from pgonce.model.identity import describe

_job = click.option("--job", required=True, help="Name of the job.")
_source = click.option("--source", default="", help="Source of the event, if it has one.")
_why = click.option("--why", required=True, help="The reason, kept on record.")
_run = click.option("--run", "run_id", type=click.IntRange(1, 2**63 - 1), help="Only events that this run brought.")


@click.group("events")
def events() -> None:
    """Look at stored events; reopen or amend those that failed.

    An ID is the text of the key column. Of several key columns it is a JSON array of their texts, in the job's order:
    '["AA","1","2026-11-30"]'.
    """


@events.command("get")
@click.argument("event_id", metavar="ID")
@_job
@_source
@place_options
def get(*, place: Place, event_id: str, job: str, source: str) -> int:
    """Show the event ID: where it came from, what it says, what became of it. Exit code 3 if it is not stored."""
    found = api.get(event_id, job=job, source=source, **place.where())
    if place.as_json:
        place.print_json(found.as_dict())
    else:
        for name, value in _described(found):
            click.echo(f"{name + ':':<12} {value}")
    return COMPLETE


@events.command("list")
@_job
@_run
@click.option("--status", type=click.Choice(STATUSES), help="Only events in this state.")
@click.option("--limit", type=int, default=LISTED_EVENTS, show_default=True, help="Most events to list.")
@place_options
def list_(*, place: Place, job: str, run_id: int | None, status: str | None, limit: int) -> int:
    """List events in the order of their identity."""
    found = api.list_(job=job, status=status, run_id=run_id, limit=limit, **place.where())
    if place.as_json:
        place.print_json({"version": 1, "job": job, "events": [event.as_dict() for event in found]})
        return COMPLETE
    print_table(
        ("source", "id", "status", "cents", "attempts", "run", "line", "error"),
        (
            (e.source, e.event_id, e.status, e.amount_cents, e.attempts, e.run_id, e.line, printable(e.error))
            for e in found
        ),
    )
    if len(found) == limit:
        place.tell(f"the first {limit} are listed; there may be more (--limit)")
    return COMPLETE


@events.command("reopen")
@click.argument("event_id", metavar="ID", required=False)
@_job
@_source
@_why
@_run
@click.option("--all-failed", is_flag=True, help="Every failed event of the job, or of the run named with --run.")
@click.option("--yes", is_flag=True, help="Do not ask, with --all-failed.")
@place_options
def reopen(
    *,
    place: Place,
    event_id: str | None,
    job: str,
    source: str,
    why: str,
    run_id: int | None,
    all_failed: bool,
    yes: bool,
) -> int:
    """Make the failed event ID pending again; or a pending one whose attempts are used up. Completed ones are final."""
    if all_failed == (event_id is not None):
        raise click.UsageError("name one event by its ID, or say --all-failed")
    if event_id is not None:
        if run_id is not None:
            raise click.UsageError("--run goes with --all-failed")
        return _tell_change(place, api.reopen(event_id, job=job, why=why, source=source, **place.where()))
    if source:
        raise click.UsageError("--source goes with an ID")
    if not yes:
        click.confirm(
            f"Reopen every failed event of {f'run {run_id} of ' if run_id else ''}job {job}?", abort=True, err=True
        )
    count = api.reopen_all_failed(job=job, why=why, run_id=run_id, **place.where())
    if place.as_json:
        place.print_json({"version": 1, "job": job, "run": run_id, "reopened": count})
    place.tell(f"{count} events are pending again; hand in the same inputs again to have them tried")
    return COMPLETE


@events.command("amend")
@click.argument("event_id", metavar="ID")
@_job
@_source
@_why
@click.option("--amount", help="The right amount, written as in the input.")
@click.option("--set", "texts", multiple=True, metavar="COLUMN=VALUE", help="A value as a CSV field; repeatable.")
@click.option("--set-json", "values", multiple=True, metavar="COLUMN=JSON", help="A value as JSON; repeatable.")
@place_options
def amend(
    *,
    place: Place,
    event_id: str,
    job: str,
    source: str,
    why: str,
    amount: str | None,
    texts: tuple[str, ...],
    values: tuple[str, ...],
) -> int:
    """Give the failed or pending event ID another amount or payload. Completed ones are final."""
    if amount is None and not texts and not values:
        raise click.UsageError("say what is to change: --amount, --set or --set-json")
    as_text, as_json = _pairs(texts, "--set"), _pairs(values, "--set-json")
    both = sorted(as_text.keys() & as_json.keys())
    if both:
        raise click.UsageError(f"column {both[0]!r} is given by both --set and --set-json")
    changed = api.amend(
        event_id,
        job=job,
        why=why,
        source=source,
        amount=amount,
        texts=as_text,
        values={column: json_value(text, column) for column, text in as_json.items()},
        **place.where(),
    )
    return _tell_change(place, changed)


def _pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        column, sign, value = text.partition("=")
        if not sign or not column:
            raise click.UsageError(f"{option} {text!r}: write COLUMN=VALUE")
        if column in pairs:
            raise click.UsageError(f"{option} names column {column!r} twice")
        pairs[column] = value
    return pairs


def _tell_change(place: Place, changed: Changed) -> int:
    if place.as_json:
        place.print_json(changed.as_dict())
    what = f" ({describe(changed.differences)})" if changed.differences else ""
    how = "it is pending now" if changed.changed else "so it was already, for the same reason, and it is pending"
    how = f"{how}, with {changed.amount_cents} cents"
    place.tell(
        f"event {changed.event_id!r} was {changed.old_status} and is {changed.action}{what}: {how}. Hand in the same "
        f"input again (that of run {changed.run_id}, line {changed.line}) to have it applied"
    )
    return COMPLETE


def _described(event: Event) -> list[tuple[str, object]]:
    """Put an event into named lines, the important ones first."""
    listed = event.listed
    by = f", by {event.started_by} at {event.started_at}" if event.started_by else ""
    granted = f", {listed.granted} granted beyond the job's budget" if listed.granted else ""
    lines: list[tuple[str, object]] = [
        ("event", listed.event_id),
        ("source", listed.source or "(empty)"),
        ("status", listed.status + (", adopted: an older program applied it" if listed.adopted else "")),
        ("amount", f"{listed.amount_cents} cents"),
        ("effect", "none" if event.effect_cents is None else f"{event.effect_cents} cents"),
        ("stored", listed.recorded_at),
        ("from", f"{event.input_name or 'an input'} line {listed.line}"),
        ("by", f"run {listed.run_id}, start {listed.epoch}{by}"),
        ("attempts", f"{listed.attempts}{granted}"),
    ]
    if listed.error:
        lines.append(("error", printable(listed.error)))
    if event.payload is None:
        lines.append(("payload", f"pruned; fingerprint {event.fingerprint}"))
    else:
        lines += [("payload", f"{name}: {_shown(value)}") for name, value in event.payload.items()]
    for step in event.history:
        run = f" in run {step.run_id}, start {step.epoch}" if step.run_id is not None else ""
        much = f" {step.granted} attempts" if step.granted else ""
        lines.append(("history", f"{step.recorded_at} {step.action}{much}{run} by {step.who}: {printable(step.why)}"))
        before = f"before: {step.old_status}, {step.old_amount_cents} cents, {step.old_attempts} attempts"
        lines.append(("", before + (f", error: {printable(step.old_error)}" if step.old_error else "")))
        if step.action == "amended" and step.old_payload:
            lines += [("", f"before: {name}: {_shown(value)}") for name, value in step.old_payload.items()]
    for finding in event.findings:
        lines.append(
            ("named in", f"run {finding.run_id} line {finding.line}, {finding.kind}: {printable(finding.reason)}")
        )
    return lines


def _shown(value: Any) -> str:
    return "null" if value is None else printable(str(value)) or "(empty)"
