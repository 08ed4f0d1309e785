"""What is to be tested, how thoroughly, and which trials that makes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgonce.crashtest.baseline import Baseline, Rules
from pgonce.crashtest.explore import Trial, trials
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.lane import Command
from pgonce.crashtest.limits import RERUNS, SAMPLE_PER_STATEMENT
from pgonce.crashtest.points import Met, sample
from pgonce.crashtest.wire import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to test and how thoroughly.

    ``setup`` are SQL files; ``original_dsn`` and ``original_database`` name a database that is copied before them, or
    with ``on_server`` cloned where it is. No ``faults`` are all that can be tried there.
    ``per_statement`` None tries every occurrence; ``points_max`` and ``time_s_max`` bound the whole; ``only`` are ids
    of points, alone or with a fault; ``resume`` is a file that keeps what was tried.
    """

    command: Command
    setup: tuple[Path, ...] = ()
    original_dsn: str | None = None
    original_database: str | None = None
    on_server: bool = False
    rules: Rules = field(default_factory=Rules)
    faults: tuple[Fault, ...] = ()
    only: frozenset[str] = frozenset()
    per_statement: int | None = SAMPLE_PER_STATEMENT
    points_max: int | None = None
    time_s_max: float | None = None
    limit_s: float | None = None
    reruns: int = RERUNS
    jobs: int = 1
    seed: int = 0
    resume: Path | None = None


def choose(plan: Plan, baseline: Baseline) -> tuple[list[Trial], frozenset[str]]:
    """Choose the trials, in the order in which they are made; return them, and of which points they were with no bound.

    Where a bound may end them, they begin with what matters most, each statement once before any comes again.
    """
    if plan.only:
        todo = trials(baseline.met, plan.faults, plan.only)
        return todo, points_of(todo)
    met = [
        one for one in sample(baseline.met, per_group=plan.per_statement, seed=plan.seed) if trials([one], plan.faults)
    ]
    unbounded = frozenset(one.point.id for one in met)
    if plan.points_max is not None or plan.time_s_max is not None:
        met = weightiest_first(met, plan.seed)[: plan.points_max]
    return trials(met, plan.faults), unbounded


def weightiest_first(met: Sequence[Met], seed: int) -> list[Met]:
    """Order points: each statement once before any comes again, and among those what writes first."""
    chance = random.Random(seed)  # noqa: S311 (a choice that has to be repeatable)
    seen: Counter[tuple[Kind, str]] = Counter()
    ranked = []
    for one in met:
        statement = one.point.kind, one.point.text
        ranked.append((seen[statement], one.weight, chance.random(), one))
        seen[statement] += 1
    return [one for *_, one in sorted(ranked, key=lambda ranks: ranks[:3])]


def points_of(todo: Iterable[Trial]) -> frozenset[str]:
    """Return the ids of the points that trials are of."""
    return frozenset(trial.met.point.id for trial in todo)


def nothing_chosen(plan: Plan, baseline: Baseline) -> str:
    """Say why there is no trial."""
    if plan.only:
        known = ", ".join(dict.fromkeys(one.point.id for one in baseline.met[:20]))
        return f"no point of a clean run is called {', '.join(sorted(plan.only))}; there are: {known}"
    return "none of the chosen faults can happen at any point of the program"
