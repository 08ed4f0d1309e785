"""A first run that fails before anything is settled, and a command that is refused, bind nothing (I9)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from database.jobs import Desk, in_thread, make_order, soon, until_blocked
from pgonce.engine.ownership import _try_acquire, acquire
from pgonce.engine.run import _claim, _enter
from pgonce.errors import ConfigurationError, ContentTaken, DefinitionChanged, EffectFailed, Retryable
from pgonce.sources import open_input

TABLES = ("job", "definition", "run", "start", "event", "finding")


def test_a_typo_in_the_effect_of_a_first_run_is_corrected_by_running_again(desk: Desk) -> None:
    """The advice says: correct the SQL and run again. Nothing was settled, so the definition may be another one."""
    desk.sql("create table public.t (id text)")
    path = desk.csv([(1, 5, "x"), (2, 6, "y")])
    with pytest.raises(EffectFailed):
        desk.run(path, effect="insert into public.t select event_idd from chunk")
    assert desk.run(path, effect="insert into public.t select event_id from chunk").run.applied.rows == 2
    assert desk.sql("select version, why from pgonce.definition order by 1") == [
        (1, "first run"),
        (2, "nothing was settled under version 1"),
    ]
    assert desk.sql("select count(*) from pgonce.run") == [(1,)]
    desk.sound()


def test_once_a_chunk_is_committed_the_definition_is_bound(desk: Desk) -> None:
    """A run that stopped later settled rows under its definition; another one is refused then."""
    desk.sql("create table public.t (id text constraint c check (id <> '2'))")
    path = desk.csv([(1, 5, "x"), (2, 6, "y")])
    desk.run(path, effect="insert into public.t select event_id from chunk", chunk_rows=1)
    with pytest.raises(DefinitionChanged, match="effect"):
        desk.run(path, chunk_rows=1)


def test_a_start_that_may_still_commit_keeps_its_definition(desk: Desk) -> None:
    """Two first runs with different keys: while one of them is alive, the other is refused."""
    path = desk.csv([(1, 5, "x")])
    with open_input(path) as source:
        order = make_order("pay")
        stored, registered = _enter(desk.clerk, source, order)
        acquire(desk.clerk, _claim(stored, order, registered, source))
        with pytest.raises(DefinitionChanged):
            desk.run(path, clerk=desk.make_clerk(), key=("id", "note"))
    assert stored.version == 1


def test_a_run_that_is_given_up_while_it_is_acquired_begins_anew(desk: Desk) -> None:
    """Between registration and acquisition another definition was put in force: it must not go on under its own."""
    path = desk.csv([(1, 5, "x")])
    order = make_order("pay")
    with open_input(path) as source:
        stored, registered = _enter(desk.clerk, source, order)
        assert desk.run(path, clerk=desk.make_clerk(), key=("id", "note")).run.applied.rows == 1
        with pytest.raises(Retryable, match="run again"):
            acquire(desk.clerk, _claim(stored, order, registered, source))


def test_giving_up_waits_for_an_acquisition_under_way(desk: Desk) -> None:
    """The run's row is locked by both: who comes second sees what the first did."""
    path, other = desk.csv([(1, 5, "x")]), desk.make_clerk()
    order = make_order("pay")
    with open_input(path) as source:
        stored, registered = _enter(desk.clerk, source, order)
        claim = _claim(stored, order, registered, source)
        with ExitStack() as waiting:
            with desk.clerk.session.transaction(soon(desk.clerk)) as transaction:
                _try_acquire(transaction, desk.clerk.session, claim, [])
                running = waiting.enter_context(in_thread(lambda: desk.run(path, clerk=other, key=("id", "note"))))
                until_blocked(desk, desk.clerk.session.backend_pid or 0)
            with pytest.raises(DefinitionChanged):
                running.result(timeout=30)
    assert desk.sql("select count(*) from pgonce.start") == [(1,)]


def test_an_effect_that_touches_what_is_guarded_stops_the_run_and_blames_no_row(desk: Desk) -> None:
    """E7: the reason is in the SQL and not in the rows: none of them is failed for it."""
    path = desk.csv([(1, 5, "x"), (2, 6, "y")])
    for effect in ("update pgonce.event set amount_cents = amount_cents + 1", "truncate pgonce.effect"):
        with pytest.raises(EffectFailed, match="is refused"):
            desk.run(path, effect=effect)
    assert desk.statuses() == {}


def test_an_effect_cannot_put_down_the_foreign_keys(desk: Desk) -> None:
    """E3: with session_replication_role=replica neither foreign keys nor guards of the user's tables would hold."""
    effect = "select set_config('session_replication_role', 'replica', true)"
    with pytest.raises(EffectFailed, match="session_replication_role"):
        desk.run(desk.csv([(1, 5, "x")]), effect=effect)
    assert desk.statuses() == {}


def test_a_definition_changed_before_the_acquisition_is_noticed(desk: Desk) -> None:
    """I9: another definition is in force when the run is begun; it must not apply anything by the old one."""
    path = desk.csv([(1, 5, "x")])
    with open_input(path) as source:
        order = make_order("pay")
        stored, registered = _enter(desk.clerk, source, order)
        desk.sql("insert into pgonce.definition select job, 2, spec, who, why from pgonce.definition")
        desk.sql("update pgonce.job set version = 2")
        with pytest.raises(Retryable, match="was changed"):
            acquire(desk.clerk, _claim(stored, order, registered, source))


def test_a_refused_command_leaves_no_trace(desk: Desk) -> None:
    """A typo in the job's name is refused, and the name is not taken by it; nor by a missing column."""
    path = desk.csv([(1, 5, "x")])
    desk.run(path)
    before = [desk.sql(f"select count(*) from pgonce.{table}") for table in TABLES]
    with pytest.raises(ContentTaken):
        desk.run(path, job="pya")
    with pytest.raises(ConfigurationError):
        desk.run(path, job="pya", key=("nothing",))
    assert [desk.sql(f"select count(*) from pgonce.{table}") for table in TABLES] == before
