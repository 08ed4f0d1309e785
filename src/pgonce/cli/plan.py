"""``pgonce plan``: what a run would do, without doing it."""

from __future__ import annotations

from typing import Any

import click

from pgonce.api.plan import plan as plan_input
from pgonce.cli.options import Place, place_options, print_table
from pgonce.cli.run import definition_options, order_of, reading_of, reading_options, run_options
from pgonce.cli.signals import stop_on_signals
from pgonce.engine.plan import FINDINGS_SHOWN, Plan
from pgonce.model.outcome import RESULTS


@click.command("plan")
@click.argument("input", type=click.Path(path_type=str, allow_dash=True))
@run_options
@definition_options
@reading_options
@click.option(
    "--findings",
    "findings_max",
    type=click.IntRange(min=0),
    default=FINDINGS_SHOWN,
    show_default=True,
    help="How many of the rows that need a look are shown.",
)
@click.option("--adopt", is_flag=True, help="Plan for pgonce adopt instead of pgonce run.")
@place_options
def plan(*, place: Place, input: str, findings_max: int, adopt: bool, **values: Any) -> int:  # noqa: A002
    """Say what a run over INPUT would do: nothing is written and no effect is run.

    Takes the options of pgonce run. Exits 0 if the run would complete with nothing bad, 3 if not.
    """
    reading = reading_of(values)
    what = order_of(values, kind="adopt" if adopt else "apply")
    with stop_on_signals() as interrupted:
        found = plan_input(
            input, what, reading=reading, findings_max=findings_max, interrupted=interrupted, **place.where()
        )
    _print(place, found)
    return found.exit_code


def _print(place: Place, found: Plan) -> None:
    for note in found.notes:
        place.tell(note)
    if place.as_json:
        place.print_json(found.as_dict())
        return
    click.echo(f"job {found.job} ({'known' if found.job_known else 'new'}): {found.input_name}, {_how(found)}")
    lines = []
    for name in (*RESULTS, "read"):
        one, whole = getattr(found.start, name), getattr(found.run, name)
        if one.rows or whole.rows or name in ("applied", "already", "read"):
            lines.append((name, one.rows, one.cents, whole.rows, whole.cents))
    print_table(("would be", "this start", "cents", "whole run", "cents"), lines)
    if found.findings:
        click.echo()
        print_table(("line", "kind", "reason"), ((bad.line, bad.kind, bad.reason) for bad in found.findings))
    if found.findings_left_out:
        place.tell(f"{found.findings_left_out} more rows need a look; show them with --findings N")
    place.tell(_verdict(found))


def _how(found: Plan) -> str:
    run = f"run {found.run_id}" if found.run_id is not None else "a new run"
    if found.how == "recognised":
        return f"recognised as {run}, which is finished: it would be answered without reading"
    if found.how == "replayed":
        return f"{run} is finished and would be read again from the beginning"
    if found.how == "resumed":
        return f"{run} would be resumed after line {found.from_line}; the counts of this start begin there"
    return run


def _verdict(found: Plan) -> str:
    parts = ["nothing was written"]
    if found.owner and found.owner_alive:
        parts.append(f"the run belongs to {found.owner}, which is still connected")
    elif found.owner:
        parts.append(f"{found.owner}, which had the run, is gone; it would be taken over")
    if found.stops_at is not None:
        parts.append(f"the run would stop before the bad row at line {found.stops_at}")
    if found.run_exit_code:
        parts.append(f"the run would exit {found.run_exit_code}")
    else:
        parts.append("the run would complete")
    return "; ".join(parts)
