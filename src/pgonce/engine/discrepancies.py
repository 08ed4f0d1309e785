"""What reconciling can find, in words: which event or run, what is wrong with it, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgonce.model.canonical import quoted
from pgonce.model.outcome import RESULTS, Counts, Tally

_FOREIGN = (
    "pgonce never writes this: something else did, with its guards turned off. Find out what, in the server's log and "
    "in pgonce events get"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """Something that does not add up. ``kind`` is stable; ``what`` and ``remedy`` are for people."""

    kind: str
    what: str
    remedy: str
    job: str | None = None
    run_id: int | None = None
    line: int | None = None
    source: str | None = None
    event_id: str | None = None

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document."""
        return {
            "kind": self.kind,
            "job": self.job,
            "run": self.run_id,
            "line": self.line,
            "source": self.source,
            "event_id": self.event_id,
            "what": self.what,
            "remedy": self.remedy,
        }


_EFFECTS = {
    "effect_without_event": (
        "there is an effect of {effect} cents and no event",
        f"{_FOREIGN}. The money counts in totals: take the effect out by hand, or restore the event",
    ),
    "effect_missing": (
        "the event is completed with {amount} cents and has no effect",
        f"{_FOREIGN}. Its money is missing in totals, and running again does not bring it: write the effect by hand",
    ),
    "effect_of_adopted_event": (
        "the event was adopted, an older program had applied it, and yet there is an effect of {effect} cents",
        f"{_FOREIGN}. The money counts twice: take the effect out by hand",
    ),
    "effect_of_open_event": (
        "the event is {status} and yet there is an effect of {effect} cents",
        f"{_FOREIGN}. Do not reopen or amend it before this is cleared up: it could not be applied",
    ),
    "effect_amount_differs": (
        "the event says {amount} cents and its effect {effect}",
        f"{_FOREIGN}. Compare both with the input and correct the wrong one by hand",
    ),
}

_ORIGINS = {
    "run_missing": "its run {run} is not there",
    "run_of_another_job": "its run {run} is another job's",
    "start_missing": "run {run} has no start that could have read it",
    "line_not_read": "it claims line {line} by start {epoch} of run {run}, which was read up to line {lines} only",
}

_STARTS = {
    "start_missing": "a start is missing: the run is at start {run_epoch}, and its starts are not 1 to {run_epoch}",
    "position_went_back": "start {epoch} is at byte {position}, and the one before it was at {before} already",
    "position_past_input": "start {epoch} is at byte {position} of an input of {input_bytes}",
    "old_start_not_ended": "start {epoch} has not ended, although a later one was begun: it could still move",
    "end_not_reached": "the run is finished, and its newest start is at byte {position} of {input_bytes}",
}


def of_effect(row: tuple[Any, ...]) -> Discrepancy:
    """Describe a row of ``reconcile_effects``."""
    kind, job, source, event_id, run_id, line, status, amount, effect, _found = row
    what, remedy = _EFFECTS[kind]
    return Discrepancy(
        kind=kind,
        what=f"event {quoted(event_id)}: {what.format(amount=amount, effect=effect, status=status)}",
        remedy=remedy,
        job=job,
        run_id=run_id,
        line=line,
        source=source,
        event_id=event_id,
    )


def of_origin(row: tuple[Any, ...]) -> Discrepancy:
    """Describe a row of ``reconcile_origins``."""
    kind, job, source, event_id, run_id, line, epoch, lines, _found = row
    return Discrepancy(
        kind=kind,
        what=f"event {quoted(event_id)}: {_ORIGINS[kind].format(run=run_id, line=line, epoch=epoch, lines=lines)}",
        remedy=f"{_FOREIGN}. After a partial restore, restore all of pgonce's tables to one moment",
        job=job,
        run_id=run_id,
        line=line,
        source=source,
        event_id=event_id,
    )


def of_line(row: tuple[Any, ...]) -> Discrepancy:
    """Describe a row of ``reconcile_lines``."""
    run_id, line, results, first, last, _found = row
    return Discrepancy(
        kind="line_counted_twice",
        what=f"line {line} of run {run_id} has {results} results, where a row has one: {quoted(first)}, {quoted(last)}",
        remedy=f"{_FOREIGN}. See which of them the input's line says",
        run_id=run_id,
        line=line,
    )


def of_start(row: tuple[Any, ...]) -> Discrepancy:
    """Describe a row of ``reconcile_starts``."""
    kind, run_id, epoch, position, before, input_bytes, run_epoch = row
    values = {
        "epoch": epoch,
        "position": position,
        "before": before,
        "input_bytes": input_bytes,
        "run_epoch": run_epoch,
    }
    return Discrepancy(
        kind=kind,
        what=f"run {run_id}: {_STARTS[kind].format(**values)}",
        remedy=f"{_FOREIGN}. Rows may have been skipped: compare what pgonce plan says of the input",
        run_id=run_id,
    )


def of_run(run_id: int, job: str, counts: Counts) -> Discrepancy:
    """Describe a run whose results do not add up to what was read."""
    read, results = counts.read, counts.accounted
    return Discrepancy(
        kind="run_unbalanced",
        what=(
            f"run {run_id} read {read.rows} rows worth {read.cents} cents, and its results come to {results.rows} rows "
            f"worth {results.cents} cents ({_written(counts)})"
        ),
        remedy=(
            f"{_FOREIGN}. After a partial restore, restore all of pgonce's tables to one moment; the run's report "
            "names every row's result"
        ),
        job=job,
        run_id=run_id,
    )


def of_source(job: str, source: str, due: Tally, effects: Tally) -> Discrepancy:
    """Describe a source whose effects do not come to what its completed events say."""
    return Discrepancy(
        kind="source_unbalanced",
        what=(
            f"source {quoted(source)} of job {job!r} has {due.rows} completed events worth {due.cents} cents, and "
            f"{effects.rows} effects worth {effects.cents} cents"
        ),
        remedy="the events behind it are named beside this",
        job=job,
        source=source,
    )


def drift(run_id: int, job: str, recorded: Counts, now: Counts, reopened: int) -> list[Discrepancy]:
    """Compare what a run recorded when it finished with what stands now; return what cannot have come about by itself.

    A pending event may have been applied or refused since by another run, and the ``reopened`` events may have left
    ``failed``. All else stays as it was.
    """
    moved = [
        name for name in ("read", "already", "conflict", "rejected") if getattr(recorded, name) != getattr(now, name)
    ]
    moved += [name for name in ("applied", "adopted") if getattr(now, name).rows < getattr(recorded, name).rows]
    if now.failed.rows < recorded.failed.rows - reopened:
        moved.append("failed")
    if now.pending.rows > recorded.pending.rows + reopened:
        moved.append("pending")
    if not moved:
        return []
    return [
        Discrepancy(
            kind="outcome_changed",
            what=(
                f"run {run_id} finished with {_written(recorded)}, and now has {_written(now)}: {', '.join(moved)} "
                "cannot have changed so"
            ),
            remedy=f"{_FOREIGN}. After a partial restore, restore all of pgonce's tables to one moment",
            job=job,
            run_id=run_id,
        )
    ]


def _written(counts: Counts) -> str:
    parts = [f"{getattr(counts, name).rows} {name}" for name in RESULTS if getattr(counts, name).rows]
    return ", ".join(parts) or "no rows"
