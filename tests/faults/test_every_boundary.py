"""Every command that writes is failed at every statement boundary with every fault, run again, and must end exact.

The whole loop is a campaign; the suite takes each COMMIT, cut before and after it, and a sample of everything else.
PGONCE_TEST_SEED chooses the sample; it is printed, and named by a failure.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.boundaries import SCENARIOS, Scenario, command, keep, prepare, restore
from faults.harness import CUT_AFTER, CUT_BEFORE, KILL_AFTER, KILL_BEFORE, Fault, FaultLoop, Summary
from faults.invariants import check, fingerprint, judge
from pgonce.crashtest.boundary import Boundary
from pgonce.db.transaction import Transaction
from pgonce.engine import fast, run, settle
from pgonce.engine.batch import ColumnBatch
from pgonce.engine.effect import Effect
from pgonce.model.row import Row
from servers_plugin import AnyServer, create_database, drop_database

# Of all pairs of a boundary and a fault, the part that the suite tries beside the COMMITs.
SHARE = 0.005

# What the suite does to COMMITs in turn: both outcomes, with the client alive and dead.
AT_COMMITS = (CUT_BEFORE, CUT_AFTER, KILL_AFTER)

# Every so many checks run the command twice more, first at the clean run's end: that takes a third of the time.
MORE_RUNS_EVERY = 4

LoopOver = Callable[..., Summary]


@pytest.fixture
def loop_over(server: AnyServer, template: str) -> LoopOver:
    """Give a function that runs the fault loop over a scenario, on a database that is prepared once."""

    def run(
        scenario: Scenario,
        *,
        wants: Callable[[Boundary, Fault], bool] = lambda _boundary, _fault: True,
        plant: Callable[[], None] = lambda: None,
    ) -> Summary:
        more_runs = (number % MORE_RUNS_EVERY == 0 for number in itertools.count())
        with tempfile.TemporaryDirectory(prefix="pgonce-") as name, _prepared(server, template, scenario, name) as made:
            folder = Path(name)

            def make_state() -> str:
                restore(scenario, made, folder)
                return made

            return FaultLoop(
                make_state=make_state,
                command=command(scenario.arguments, folder, plant=_copying(plant) if scenario.by_copy else plant),
                check=functools.partial(check, scenario, folder=folder, more_runs=more_runs),
                fingerprint=functools.partial(fingerprint, scenario, folder=folder),
                judge=functools.partial(judge, scenario),
                folder=folder / "s",
                accepted=frozenset({scenario.code}),
                wants=wants,
            ).run()

    return run


@contextmanager
def _prepared(server: AnyServer, template: str, scenario: Scenario, folder: str) -> Iterator[str]:
    dsn = create_database(server, None if scenario.is_fresh else template)
    try:
        prepare(scenario, dsn, Path(folder))
        keep(scenario, dsn)
        yield dsn
    finally:
        drop_database(server, dsn)


def _copying(plant: Callable[[], None]) -> Callable[[], None]:
    """Have the fewest events claimed by COPY, and read as columns, in the process of the command."""

    def planted() -> None:
        fast.COPY_ROWS_MIN = run.AHEAD_ROWS_MIN = 1
        plant()

    return planted


def assert_all_held(scenario: Scenario, summary: Summary, note: str) -> None:
    """Print what was tried; every promise held, every point was reached, both ends of a doubtful COMMIT were seen."""
    tried = ", ".join(f"{count} {fault}" for fault, count in summary.tried.items())
    seen = ", ".join(f"{count} {what}" for what, count in sorted(summary.sometimes.items()) if count)
    print(
        f"\n{scenario.name}: {len(summary.points)} boundaries, {summary.tried.total()} faults ({tried}), "
        f"{len(summary.failures)} failures; {seen}; {note}"
    )
    summary.assert_green()
    assert scenario.by_workers or not summary.unreached, summary.unreached
    assert len(summary.unreached) < summary.tried.total()
    if any(point.is_commit for point in summary.points):
        assert summary.sometimes["commit in doubt, committed"]
        assert summary.sometimes["commit in doubt, not committed"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_failed_at_its_commits_and_elsewhere_a_command_ends_exact(scenario: Scenario, loop_over: LoopOver) -> None:
    """E1, E5, E8, R3: COMMITs are cut with both outcomes, the first position move too, and a sample of others."""
    seed = os.environ.get("PGONCE_TEST_SEED") or str(random.randrange(1_000_000))
    turns = itertools.cycle(random.Random(seed).sample(AT_COMMITS, len(AT_COMMITS)))
    taken: dict[Boundary, tuple[Fault, ...]] = {}
    moves: dict[str, Boundary] = {}

    def wants(boundary: Boundary, fault: Fault) -> bool:
        if boundary.is_commit:
            if boundary not in taken:
                taken[boundary] = (next(turns),) if taken else (CUT_BEFORE, CUT_AFTER)
            return fault in taken[boundary]
        if scenario.only_reads:
            return True
        if "set position" in boundary.statement:
            return fault is CUT_BEFORE and boundary == moves.setdefault(scenario.name, boundary)
        point = f"{seed} {scenario.name} {boundary.connection}.{boundary.nth} {fault.name}"
        return random.Random(point).random() < SHARE

    assert_all_held(scenario, loop_over(scenario, wants=wants), f"PGONCE_TEST_SEED={seed}")


@pytest.mark.campaign
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_campaign_over_every_boundary(scenario: Scenario, loop_over: LoopOver) -> None:
    """The same at every boundary with every fault; the numbers are printed."""
    began_s = time.monotonic()
    summary = loop_over(scenario)
    assert_all_held(scenario, summary, f"{time.monotonic() - began_s:.0f} s")


def save_the_position_apart() -> None:
    """Plant: the chunk is committed first, and its position in a transaction of its own."""
    move = settle.move

    def move_apart(transaction: Transaction, *arguments: Any) -> Any:
        transaction.connection.execute("commit")
        transaction.connection.execute("begin")
        return move(transaction, *arguments)

    settle.move = move_apart


def commit_the_effect_apart() -> None:
    """Plant: the user's effect is committed by a connection of its own, before the chunk is."""
    begin, add, ready, finish = Effect.begin, Effect.add, Effect.ready, Effect.finish
    kept: list[Sequence[Row] | ColumnBatch] = []

    def finish_apart(effect: Effect, transaction: Transaction) -> None:
        with psycopg.connect(transaction.connection.info.dsn) as connection:
            own = Transaction(connection, transaction.schema)
            own.may_use_temp = True
            begin(effect, own)
            for rows in kept:
                add(effect, own, rows)
            ready(effect, own)
            finish(effect, own)

    Effect.begin = lambda _effect, _transaction: kept.clear()
    Effect.add = lambda _effect, _transaction, rows: kept.append(rows)
    Effect.ready = lambda _effect, _transaction: None
    Effect.finish = finish_apart


@pytest.mark.parametrize(
    ("name", "plant", "broken", "times"),
    [
        ("run-chunk", save_the_position_apart, "neither its own code nor says that it is safe", 3),
        ("run-over-pending", commit_the_effect_apart, "'accounts'", 2),
    ],
)
def test_a_planted_bug_turns_the_loop_red(
    name: str, plant: Callable[[], None], broken: str, times: int, loop_over: LoopOver
) -> None:
    """A bug that no clean run shows is found at each chunk that has it, by killing the command before its COMMITs."""
    [scenario] = [scenario for scenario in SCENARIOS if scenario.name == name]
    summary = loop_over(scenario, plant=plant, wants=lambda point, fault: point.is_commit and fault is KILL_BEFORE)
    print(f"\n{name} with a planted bug: {summary.tried.total()} faults, {len(summary.failures)} failures")
    assert [broken in failure.reason for failure in summary.failures] == [True] * times, summary.failures
