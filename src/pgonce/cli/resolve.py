"""``pgonce resolve``: what became of a COMMIT whose answer was lost."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pgonce.api.resolve import resolve as resolve_runs
from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE, OUTCOME_UNKNOWN
from pgonce.cli.options import Place, place_options
from pgonce.cli.printable import printable
from pgonce.cli.streams import say
from pgonce.engine.bookkeeping import BOOKKEEPING_S
from pgonce.engine.resolve import Resolved

_MOST = 2**31 - 1

_WRONG_OR_LOST = "either the number is wrong, or the database lost acknowledged commits (a failover or restore)"


@click.command("resolve")
@click.argument("run_id", metavar="[RUN]", type=click.IntRange(1, 2**63 - 1), required=False)
@click.option("--start", "epoch", type=click.IntRange(1, _MOST), help="The start in doubt. Default: the newest.")
@click.option("--chunk", type=click.IntRange(1, 2**63 - 1), help="The chunk of that start whose COMMIT is in doubt.")
@click.option(
    "--deadline",
    "deadline_s",
    type=float,
    default=BOOKKEEPING_S,
    show_default=True,
    help="Longest time to wait for who holds the rows, in seconds.",
)
@place_options
def resolve(*, place: Place, run_id: int | None, epoch: int | None, chunk: int | None, deadline_s: float) -> int:
    """Say for certain up to where RUN is settled, after exit code 77. Writes nothing.

    Without RUN: every run whose newest start has not ended. Exit code 77 if it cannot be told by the deadline, 3 if
    there is no such run, start or chunk.
    """
    if run_id is None and (epoch is not None or chunk is not None):
        raise click.UsageError("--start and --chunk are those of one run: name RUN")
    found = resolve_runs(run_id, epoch=epoch, chunk=chunk, deadline_s=deadline_s, **place.where())
    if place.as_json:
        place.print_json({"version": 1, "runs": [one.as_dict() for one in found]})
    else:
        for one in found:
            for name, value in _described(one, place):
                click.echo(f"{name + ':':<12} {value}")
    if not found:
        place.tell("nothing is in doubt: every start has ended")
    unknown = [one.run_id for one in found if not one.established]
    if unknown:
        say(f"outcome unknown: {', '.join(f'run {number}' for number in unknown)}; it is settled neither way yet")
    if unknown:
        return OUTCOME_UNKNOWN
    return COMPLETE if all(one.is_there for one in found) else CHECK_FOUND_SOMETHING


def _described(one: Resolved, place: Place) -> Iterator[tuple[str, object]]:
    """Put what is known of a run into named lines."""
    if not one.established:
        yield "run", one.run_id
        yield "outcome", "unknown"
        yield "next", f"{one.next}{place.words}"
        return
    yield "run", f"{one.run_id} (job {one.job}{f', {printable(one.input_name)}' if one.input_name else ''})"
    yield "start", f"{one.epoch}, {_state(one)}" if one.epoch else "none was begun"
    if one.state not in ("missing", "registered"):
        share = f"line {one.lines}, byte {one.position_bytes} of {one.input_bytes}"
        yield "settled", f"up to {share}; {one.chunks} chunks of this start are committed"
    if one.committed is not None:
        yield "outcome", f"chunk {one.chunk} {_outcome(one)}"
    yield "next", one.next


def _outcome(one: Resolved) -> str:
    if one.committed:
        return "was committed"
    if one.is_there:
        return "was not committed: it was rolled back, or never sent"
    return f"is not stored, and comes after one that is not: {_WRONG_OR_LOST}"


def _state(one: Resolved) -> str:
    return {
        "running": "at work",
        "gone": "not ended; its owner is gone",
        "ended": printable(one.ended_how),
        "missing": "not stored",
    }[one.state]
