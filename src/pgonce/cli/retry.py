"""``pgonce retry``: have events tried again that used up their attempts or failed."""

from __future__ import annotations

from typing import Any

import click

from pgonce.api import retry as api
from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE
from pgonce.cli.options import Place, place_options
from pgonce.engine.retry import GRANT_MAX, Retried, RetriedEvent
from pgonce.model.limits import ATTEMPTS

_AGAIN = "Hand in the same inputs again (the same pgonce run) to have them tried"


@click.command("retry")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--pending", is_flag=True, help="Every pending event whose attempts are used up.")
@click.option("--failed", is_flag=True, help="Every failed event: reopen it.")
@click.option("--job", help="The job. Default: that of --run, or the only one there is.")
@click.option("--source", help="Source of the IDs, if they have one; with --pending or --failed only events of it.")
@click.option("--run", "run_id", type=click.IntRange(1, 2**63 - 1), help="Only events that this run brought.")
@click.option(
    "--budget",
    type=click.IntRange(1, GRANT_MAX),
    help=f"Attempts that an event gets which used up its own. [default: {ATTEMPTS}]",
)
@click.option("--why", required=True, help="The reason, kept on record.")
@place_options
def retry(
    *,
    place: Place,
    event_ids: tuple[str, ...],
    pending: bool,
    failed: bool,
    job: str | None,
    source: str | None,
    run_id: int | None,
    budget: int | None,
    why: str,
) -> int:
    """Have events tried again by the next run over their inputs. Runs no effect itself.

    An event that used up its attempts over all starts is granted more, one that failed is reopened; who did, when, why
    and how much is kept. An ID is written as in pgonce events. Exit code 3 if no event is there for a run to try.
    """
    if sum((bool(event_ids), pending, failed)) != 1:
        raise click.UsageError("say which events: their IDs, or --pending, or --failed")
    if event_ids and run_id is not None:
        raise click.UsageError("--run goes with --pending and --failed")
    if failed and budget is not None:
        raise click.UsageError("--budget goes with --pending and IDs; a reopened event has all its attempts again")
    where: dict[str, Any] = {"why": why, "job": job, **place.where()}
    if event_ids:
        found = api.events(event_ids, source=source or "", budget=budget or ATTEMPTS, **where)
    elif pending:
        found = api.grant(run_id=run_id, source=source, budget=budget or ATTEMPTS, **where)
    else:
        found = api.reopen(run_id=run_id, source=source, **where)
    if place.as_json:
        place.print_json(found.as_dict())
    for line in [_named(event) for event in found.events] or [_told(found, failed=failed)]:
        place.tell(line)
    if found.granted or found.reopened:
        place.tell(_AGAIN)
    return COMPLETE if found.waiting else CHECK_FOUND_SOMETHING


def _told(found: Retried, *, failed: bool) -> str:
    """Say what was done to how many; where nothing was, why not."""
    if found.granted:
        return f"{_events(found.granted)} of job {found.scope.job} may be tried {found.budget} times more"
    if found.reopened:
        return f"{_events(found.reopened)} of job {found.scope.job} failed and may be tried again, with all attempts"
    nothing = f"no failed event of job {found.scope.job}" if failed else f"no used-up event of job {found.scope.job}"
    if not found.waiting:
        return f"{nothing}, and none that is pending: there is nothing to try again"
    return (
        f"{nothing}: nothing was changed. Pending with attempts left: {_events(found.waiting)}; none is added to them, "
        "and the next run over their inputs tries them"
    )


def _named(event: RetriedEvent) -> str:
    """Say what was done with one event."""
    name = f"event {event.event_id!r}"
    if event.action == "final":
        return f"{name} is {event.status} and final; nothing is to be tried again"
    if event.action == "waiting":
        return (
            f"{name} is pending with attempts left: {event.attempts_left}; none is added to them. The next run over "
            f"its input (that of run {event.run_id}, line {event.line}) tries it"
        )
    what = "failed and is reopened" if event.action == "reopened" else "had used up its attempts"
    return f"{name} {what}: it may be tried {event.attempts_left} times (run {event.run_id}, line {event.line})"


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count} events"
