"""``pgonce reconcile``: do the books balance? Exit code 0 if they do, 3 if not."""

from __future__ import annotations

import click

from pgonce.api.reconcile import reconcile as reconcile_with
from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE
from pgonce.cli.options import Place, place_options, print_table
from pgonce.engine.reconcile import Reconciliation, RunBalance
from pgonce.model.outcome import RESULTS


@click.command("reconcile")
@click.option("--job", help="Only this job.")
@click.option("--run", "run_id", type=click.IntRange(1, 2**63 - 1), help="Only this run.")
@place_options
def reconcile(*, place: Place, job: str | None, run_id: int | None) -> int:
    """Check that every row read has one result, and every completed event its effect, in rows and cents.

    Exit code 0 if everything balances, 3 if not; each discrepancy is named. May run beside running jobs.
    """
    found = reconcile_with(job=job, run_id=run_id, **place.where())
    if place.as_json:
        place.print_json(found.as_dict())
    elif not place.quiet:
        _print(found)
    if found.confirmed:
        runs = ", ".join(map(str, found.confirmed))
        place.tell(f"runs {runs} were finished in another database; they balance in this one and are confirmed")
    if found.balanced:
        place.tell(f"everything balances: {len(found.runs)} runs, {len(found.sources)} sources")
        return COMPLETE
    for one in found.discrepancies:
        click.echo(f"pgonce: {one.kind}: {one.what}. {one.remedy}.", err=True)
    place.tell(f"{found.found} discrepancies; {len(found.discrepancies)} of them are named above")
    return CHECK_FOUND_SOMETHING


def _print(found: Reconciliation) -> None:
    print_table(("run", "job", "read", *RESULTS, "cents", "balanced"), (_run_line(run) for run in found.runs))
    print_table(
        ("source", "job", "completed", "cents", "adopted", "failed", "pending", "effects", "cents", "balanced"),
        (
            (
                source.source or "(empty)",
                source.job,
                source.due.rows,
                source.due.cents,
                *(
                    source.events[state].rows if state in source.events else 0
                    for state in ("adopted", "failed", "pending")
                ),
                source.effects.rows,
                source.effects.cents,
                "yes" if source.balanced else "NO",
            )
            for source in found.sources
        ),
    )


def _run_line(run: RunBalance) -> tuple[object, ...]:
    counts = run.counts
    results = (getattr(counts, name).rows for name in RESULTS)
    return (run.run_id, run.job, counts.read.rows, *results, counts.read.cents, "yes" if counts.balanced else "NO")
