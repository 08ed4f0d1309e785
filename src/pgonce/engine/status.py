"""How things stand: jobs with their events, and runs with who owns them and how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pgonce.db.transaction import Transaction
from pgonce.engine import ownership
from pgonce.engine.bookkeeping import Clerk, read_only
from pgonce.engine.counting import count_run
from pgonce.model.outcome import Counts, Tally

EVENT_STATES = ("completed", "adopted", "pending", "failed", "pruned")
FINDING_KINDS = ("conflict", "rejected")

# Counting every event reads the table once; on a large one that takes longer than bookkeeping ever should.
SCAN_S = 600.0

# A screen of runs; more by --limit.
RUNS_SHOWN = 20
RUNS_SHOWN_MAX = 10_000

# Each unfinished run is counted from its rows and its owner is looked for; nobody reads more of them at once.
UNFINISHED_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job with its events by state (completed without those adopted) and its findings by kind, in rows and cents."""

    job: str
    version: int
    events: Mapping[str, Tally]
    findings: Mapping[str, Tally]

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "job": self.job,
            "definition": self.version,
            "events": _tallies(self.events, EVENT_STATES),
            "findings": _tallies(self.findings, FINDING_KINDS),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run. ``state`` is ``running``, ``stopped``, ``finished`` or ``registered`` (no start has begun yet).

    ``owner`` is who began the newest start, ``ended_how`` how that ended (None: it has not, or nobody could say so).
    ``position_bytes`` and ``lines`` say up to where the input of ``input_bytes`` is settled, ``silent_s`` how many
    seconds ago that moved last.
    """

    run_id: int
    job: str
    kind: str
    source: str
    input_name: str | None
    input_bytes: int
    state: str
    starts: int
    owner: str | None
    owner_alive: bool
    ended_how: str | None
    position_bytes: int
    lines: int
    silent_s: float | None
    counts: Counts
    begun_at: datetime
    finished_at: datetime | None

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "run": self.run_id,
            "job": self.job,
            "kind": self.kind,
            "source": self.source,
            "input": self.input_name,
            "input_bytes": self.input_bytes,
            "state": self.state,
            "starts": self.starts,
            "owner": self.owner,
            "owner_alive": self.owner_alive,
            "ended_how": self.ended_how,
            "position_bytes": self.position_bytes,
            "lines": self.lines,
            "silent_s": self.silent_s,
            "counts": self.counts.as_dict(),
            "begun_at": self.begun_at.isoformat(),
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
        }


def job_statuses(clerk: Clerk, job: str | None = None) -> list[JobStatus]:
    """Count the events and findings of every job, or of one; an empty list if there is none.

    Reads the event table once. Safe to re-run: it only reads.
    """

    def body(transaction: Transaction) -> list[JobStatus]:
        read_only(transaction)
        events = _by_job(transaction.rows("count_events", job=job))
        findings = _by_job(transaction.rows("count_findings", job=job))
        return [
            JobStatus(job=name, version=version, events=events.get(name, {}), findings=findings.get(name, {}))
            for name, version, *_ in transaction.rows("list_jobs", job=job)
        ]

    return replace(clerk, patience_s=SCAN_S).do(body, commit=False)


def run_statuses(
    clerk: Clerk, job: str | None = None, *, limit: int = RUNS_SHOWN, unfinished: bool = False
) -> list[RunStatus]:
    """List runs, the newest first. A finished run's counts are those recorded when it finished, unless it was touched.

    Safe to re-run: it only reads.
    """

    def body(transaction: Transaction) -> list[RunStatus]:
        read_only(transaction)
        found = transaction.rows("list_runs", job=job, unfinished=unfinished, at_most=limit)
        return [_run_status(transaction, clerk, row) for row in found]

    return replace(clerk, patience_s=SCAN_S).do(body, commit=False)


def _run_status(transaction: Transaction, clerk: Clerk, row: tuple[Any, ...]) -> RunStatus:
    run_id, job, _version, kind, source, input_bytes, epoch, begun_at, finished_at, outcome, touched = row
    start = transaction.row("read_start", run_id=run_id, epoch=epoch) if epoch else None
    ended = start is None or start[12] is not None
    alive = not ended and start is not None and ownership.alive(transaction, clerk.session, start)
    counts = _recorded(outcome) if finished_at is not None and not touched else None
    return RunStatus(
        run_id=run_id,
        job=job,
        kind=kind,
        source=source,
        input_name=start[6] if start else None,
        input_bytes=input_bytes,
        state=_state(started=start is not None, alive=alive, finished=finished_at is not None),
        starts=epoch,
        owner=start[7] if start else None,
        owner_alive=alive,
        ended_how=start[13] if start else None,
        position_bytes=start[1] if start else 0,
        lines=start[2] if start else 0,
        silent_s=round(start[14], 1) if start else None,
        counts=counts or count_run(transaction, job, run_id),
        begun_at=begun_at,
        finished_at=finished_at,
    )


def _state(*, started: bool, alive: bool, finished: bool) -> str:
    if alive:
        return "running"
    if finished:
        return "finished"
    return "stopped" if started else "registered"


def _recorded(outcome: Mapping[str, Any] | None) -> Counts | None:
    """Read the counts of a finished run; None if its pending events may have been settled since by another run."""
    if outcome is None or outcome["counts"]["pending"]["rows"]:
        return None
    return Counts(**{name: Tally(found["rows"], found["cents"]) for name, found in outcome["counts"].items()})


def _by_job(rows: list[tuple[Any, ...]]) -> dict[str, dict[str, Tally]]:
    found: dict[str, dict[str, Tally]] = {}
    for job, name, count, cents in rows:
        found.setdefault(job, {})[name] = Tally(int(count), int(cents))
    return found


def _tallies(found: Mapping[str, Tally], names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    values = {name: found.get(name, Tally()) for name in names}
    return {name: {"rows": value.rows, "cents": value.cents} for name, value in values.items()}
