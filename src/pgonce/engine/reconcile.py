"""Balance the books: does every row read have one result, and every completed event its effect?

Everything is looked at in one snapshot, so that a run which is going on meanwhile is seen between two of its chunks and
never in the middle of one. What is found is named: which event, what is wrong with it, what to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pgonce.db.transaction import Transaction
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.counting import UNIDENTIFIED, cluster_identity, count_run
from pgonce.engine.discrepancies import Discrepancy, drift, of_effect, of_line, of_origin, of_run, of_source, of_start
from pgonce.engine.events import definition_of
from pgonce.errors import ConfigurationError
from pgonce.model.outcome import Counts, Tally

# Every table is read once; an hour is enough for some hundred million events.
RECONCILE_S = 3_600.0

# Discrepancies that are named of one kind. Who finds more has one cause behind them, not a thousand.
NAMED_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBalance:
    """A run's rows by their result, as they stand; ``recorded_elsewhere``: it was finished in another database."""

    run_id: int
    job: str
    kind: str
    source: str
    finished: bool
    counts: Counts
    recorded_elsewhere: bool

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document."""
        return {
            "run": self.run_id,
            "job": self.job,
            "kind": self.kind,
            "source": self.source,
            "finished": self.finished,
            "balanced": self.counts.balanced,
            "counts": self.counts.as_dict(),
        }


@dataclass(slots=True, kw_only=True)
class SourceBalance:
    """A source's events by state, and the effects under its name, in rows and cents; adopted ones are counted apart."""

    job: str
    source: str
    events: dict[str, Tally] = field(default_factory=dict)
    effects: Tally = field(default_factory=Tally)

    @property
    def due(self) -> Tally:
        """What the effects have to come to."""
        return self.events.get("completed", Tally()) + self.events.get("pruned", Tally())

    @property
    def balanced(self) -> bool:
        """Say whether effects and completed events agree in number and in cents."""
        return self.due == self.effects

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document."""
        return {
            "job": self.job,
            "source": self.source,
            "balanced": self.balanced,
            "events": {state: {"rows": tally.rows, "cents": tally.cents} for state, tally in self.events.items()},
            "effects": {"rows": self.effects.rows, "cents": self.effects.cents},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What reconciling found. ``found`` counts all discrepancies; of each kind at most NAMED_MAX are named.

    ``confirmed`` are finished runs whose first answer may be repeated again, in the database as it is now.
    """

    runs: tuple[RunBalance, ...]
    sources: tuple[SourceBalance, ...]
    discrepancies: tuple[Discrepancy, ...]
    found: int
    cluster: str
    confirmed: tuple[int, ...] = ()

    @property
    def balanced(self) -> bool:
        """Say whether nothing was found."""
        return not self.found

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "version": 1,
            "balanced": self.balanced,
            "found": self.found,
            "runs": [run.as_dict() for run in self.runs],
            "sources": [source.as_dict() for source in self.sources],
            "discrepancies": [one.as_dict() for one in self.discrepancies],
            "confirmed_runs": list(self.confirmed),
        }


@dataclass(slots=True)
class _Found:
    """Discrepancies as they are found: those named, and how many there are."""

    named: list[Discrepancy] = field(default_factory=list)
    count: int = 0

    def add(self, named: list[Discrepancy], count: int | None = None) -> None:
        self.named += named
        self.count += len(named) if count is None else count


def reconcile(clerk: Clerk, *, job: str | None = None, run_id: int | None = None) -> Reconciliation:
    """Balance all runs, those of one job, or one run; if everything asked for balances, confirm it on finished runs.

    A finished run that was recorded in another database (before a restore or failover) has its answer repeated without
    reading again only once it is confirmed here.
    Raises ConfigurationError for an unknown job or run.
    Safe to re-run: yes; it changes nothing but that confirmation.
    """
    patient = replace(clerk, patience_s=RECONCILE_S)
    seen = patient.do(lambda transaction: _look(transaction, job, run_id), commit=False, snapshot=True)
    due = [run.run_id for run in seen.runs if run.recorded_elsewhere]
    if not seen.balanced or not due or seen.cluster.startswith(UNIDENTIFIED):
        return seen

    def confirm(transaction: Transaction) -> tuple[int, ...]:
        if cluster_identity(transaction) != seen.cluster:
            return ()
        return tuple(row[0] for row in transaction.rows("bless_runs", run_ids=due, cluster=seen.cluster))

    return replace(seen, confirmed=clerk.do(confirm))


def _look(transaction: Transaction, job: str | None, run_id: int | None) -> Reconciliation:
    if job is not None:
        definition_of(transaction, job)
    asked: dict[str, object] = {"job": job, "run_id": run_id}
    cluster, found = cluster_identity(transaction), _Found()
    runs = _runs(transaction, asked, cluster, found)
    if run_id is not None and not runs:
        raise ConfigurationError(f"there is no run {run_id}{f' of job {job!r}' if job else ''}; pgonce runs lists them")
    sources = _sources(transaction, asked, found)
    for name, describe in (
        ("reconcile_effects", of_effect),
        ("reconcile_origins", of_origin),
        ("reconcile_lines", of_line),
    ):
        rows = transaction.rows(name, limit=NAMED_MAX, **asked)
        found.add([describe(row) for row in rows], rows[0][-1] if rows else 0)
    found.add([of_start(row) for row in transaction.rows("reconcile_starts", limit=NAMED_MAX, **asked)])
    return Reconciliation(
        runs=tuple(runs), sources=tuple(sources), discrepancies=tuple(found.named), found=found.count, cluster=cluster
    )


def _runs(transaction: Transaction, asked: dict[str, object], cluster: str, found: _Found) -> list[RunBalance]:
    balances = []
    for run_id, job, kind, source, finished, outcome, touched, reopened in transaction.rows("reconcile_runs", **asked):
        counts = count_run(transaction, job, run_id)
        if not counts.balanced:
            found.add([of_run(run_id, job, counts)])
        if finished and outcome is not None and not touched:
            found.add(drift(run_id, job, _recorded(outcome), counts, reopened))
        elsewhere = bool(finished and outcome and outcome.get("cluster") != cluster)
        balances.append(
            RunBalance(
                run_id=run_id,
                job=job,
                kind=kind,
                source=source,
                finished=finished,
                counts=counts,
                recorded_elsewhere=elsewhere,
            )
        )
    return balances


def _recorded(outcome: dict[str, Any]) -> Counts:
    counts = outcome.get("counts", {})
    return Counts.from_rows((name, tally["rows"], tally["cents"]) for name, tally in counts.items())


def _sources(transaction: Transaction, asked: dict[str, object], found: _Found) -> list[SourceBalance]:
    balances: dict[tuple[str, str], SourceBalance] = {}
    for job, source, status, adopted, *numbers in transaction.rows("reconcile_sources", **asked):
        events, cents, effects, effect_cents = (int(number) for number in numbers)
        balance = balances.setdefault((job, source), SourceBalance(job=job, source=source))
        state = "adopted" if adopted else status
        if events:
            balance.events[state] = balance.events.get(state, Tally()) + Tally(events, cents)
        balance.effects += Tally(effects, effect_cents)
    for balance in balances.values():
        if not balance.balanced:
            found.add([of_source(balance.job, balance.source, balance.due, balance.effects)])
    return list(balances.values())
