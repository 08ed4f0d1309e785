"""A dry run does everything and leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from database.jobs import Desk, Watching, frozen, in_thread, make_order, never
from database.test_ownership import Gate
from database.test_plan import MIXED
from pgonce.engine.dryrun import rehearse
from pgonce.errors import (
    ConfigurationError,
    ContentTaken,
    EffectFailed,
    Interrupted,
    PgonceError,
    RunOwned,
    StopRequested,
)
from pgonce.model.observer import Silent
from pgonce.model.report import RunReport
from pgonce.sources import open_input


def visible_rows(desk: Desk) -> list[Any]:
    """Return every row of every table (a rolled-back lock may stay visible in a row's header, which means nothing)."""
    tables = desk.sql("select tablename from pg_tables where schemaname = 'pgonce' order by 1")
    return [desk.sql(f"select t::text from pgonce.{name} as t order by 1") for (name,) in tables]


EFFECT = "insert into total select sum(amount_cents) from chunk"


def rehearsal(desk: Desk, path: Any, interrupted: Any = never, **options: Any) -> RunReport:
    """Rehearse a run over a file."""
    with open_input(path) as source:
        return rehearse(
            frozen(desk.make_clerk()), source, make_order(**options), observer=Silent(), interrupted=interrupted
        )


def test_a_dry_run_reports_what_the_run_then_does_and_stores_nothing(desk: Desk) -> None:
    """No job, no run, no start, no event, no effect, no row of the user's; and the counts are those of the run."""
    desk.sql("create table total (cents bigint)")
    path, before = desk.csv(MIXED), visible_rows(desk)
    found = rehearsal(desk, path, effect=EFFECT, chunk_rows=2)
    assert (visible_rows(desk), desk.sql("select * from total")) == (before, [])
    done = desk.run(path, effect=EFFECT, chunk_rows=2)
    assert (found.start, found.run, found.exit_code) == (done.start, done.run, done.exit_code)
    assert (found.checkpoint, found.epoch) == ("all", 1)


def test_a_dry_run_of_a_stopped_and_of_a_finished_run_changes_nothing(desk: Desk) -> None:
    """It goes on from the stored position, or recognises the input, as the run would."""
    path, watching = desk.csv(MIXED), Watching()
    with pytest.raises(Interrupted):
        desk.run(path, chunk_rows=2, observer=watching, interrupted=lambda: bool(watching.steps))
    before = visible_rows(desk)
    found = rehearsal(desk, path)
    assert visible_rows(desk) == before
    done = desk.run(path)
    assert (found.start, found.run, found.epoch) == (done.start, done.run, 2)


def test_the_effect_and_its_check_are_really_run(desk: Desk) -> None:
    """What the effect or the check refuses is said, with nothing written; a deferred constraint too."""
    desk.sql("create table total (cents bigint check (cents < 50))")
    path = desk.csv([("a", 100, "x")])
    with pytest.raises(EffectFailed, match="total_cents_check"):
        rehearsal(desk, path, effect=EFFECT)
    with pytest.raises(EffectFailed, match="check at line 1"):
        rehearsal(desk, path, effect="select 1", verify="select * from chunk")
    desk.sql("create table once (id text, constraint one unique (id) deferrable initially deferred)")
    with pytest.raises(EffectFailed, match=r"one \[23505\]|\"one\""):
        rehearsal(desk, path, effect="insert into once select 'x' from generate_series(1, 2)")
    assert desk.sql("select job from pgonce.job") == []


def test_a_dry_run_keeps_the_limits_of_the_order(desk: Desk) -> None:
    """With stop at a bad row it stops, naming the line; without, bad rows are counted."""
    path = desk.csv(MIXED)
    with pytest.raises(StopRequested, match="line 3"):
        rehearsal(desk, path, on_error="stop")
    with pytest.raises(StopRequested, match="line 3"):
        rehearsal(desk, path, checkpoint="all")
    assert rehearsal(desk, path, max_rejected=10).run.rejected.rows == 2


def test_what_the_run_would_refuse_the_dry_run_refuses(desk: Desk) -> None:
    """Another definition or content that was taken; and a stop between chunks when asked."""
    path = desk.csv([("a", 5, "x")])
    desk.run(path)
    before = visible_rows(desk)
    with pytest.raises(ContentTaken):
        rehearsal(desk, path, job="other")
    with pytest.raises(ConfigurationError, match="another definition"):
        rehearsal(desk, path, amount=None)
    with pytest.raises(Interrupted):
        rehearsal(desk, desk.csv(MIXED), interrupted=lambda: True)
    assert visible_rows(desk) == before


def test_a_live_owner_is_not_taken_over_by_a_dry_run(desk: Desk) -> None:
    """Not even with --take-over: the owner's chunks must not wait for a rehearsal."""
    path, gate = desk.csv([(n, n, "x") for n in range(1, 11)]), Gate(2)
    with in_thread(desk.run, path, clerk=desk.make_clerk(), chunk_rows=2, observer=Watching(gate)) as first:
        assert gate.reached.wait(30)
        with pytest.raises(RunOwned):
            rehearsal(desk, path, take_over=True)
        gate.opened.set()
        assert first.result(timeout=30).run.applied.rows == 10


def test_a_rehearsal_of_a_large_chunk_ends_where_an_effect_stands_without_its_event(desk: Desk) -> None:
    """P1: what COPY finds broken is said; a rehearsal does not begin anew for it."""
    desk.sql("alter table pgonce.effect disable trigger effect_reference")
    desk.sql("insert into pgonce.effect values (3, 'pay', '', '000007')")
    path = desk.csv([(f"{number:06}", 3, "n") for number in range(100)])
    with pytest.raises(PgonceError, match="effect_pkey"):
        rehearsal(desk, path)
