"""Public bugs of others around failing transactions, each by its right outcome here (the case's number first)."""

from __future__ import annotations

import psycopg
import pytest

import pgonce
from database.jobs import Desk, Watching, in_thread, until
from pgonce.crashtest.boundary import CUT_AFTER, PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.errors import EffectFailed, PgonceError

LEDGER = "create table ledger (id text primary key, cents bigint not null)"
PUT = "insert into ledger (id, cents) values ('a', 100)"


def stored(desk: Desk) -> list[tuple[str, int]]:
    """Return what is in the ledger."""
    return desk.sql("select id, cents from ledger order by id")


def test_r7_a_statement_that_was_executed_and_not_answered_leaves_nothing_behind(desk: Desk) -> None:
    """R7: there is no autocommit to apply it behind the client's back; the next try applies it once."""
    desk.sql(LEDGER)
    cuts, seen = [CUT_AFTER], []

    def on_boundary(boundary: Boundary) -> Action:
        return cuts.pop() if boundary.statement.startswith("insert into ledger") and cuts else PASS

    def put(tx: pgonce.GuardedConnection) -> None:
        seen.append(stored(desk))
        tx.execute(PUT)

    with Proxy.of_dsn(desk.dsn, on_boundary=on_boundary) as proxy, pgonce.connect(proxy.dsn(desk.dsn)) as once:
        once.do(put)
        assert [fired.answer for fired in proxy.fired] == ["INSERT 0 1"]
    assert seen == [[], []]
    assert stored(desk) == [("a", 100)]


def test_r8_after_a_commit_that_failed_nobody_meets_its_connection_again(desk: Desk) -> None:
    """R8: the next transaction has another back-end, and finds nothing of the one before."""
    desk.sql(LEDGER)
    desk.sql("alter table ledger add constraint later unique (cents) deferrable initially deferred")
    desk.sql("insert into ledger (id, cents) values ('old', 100)")

    def backend(tx: pgonce.GuardedConnection) -> object:
        return tx.execute("select pg_backend_pid()").fetchone()

    with pgonce.connect(desk.dsn) as once:
        pids = []

        def put() -> None:
            with once.transaction() as tx:
                pids.append(backend(tx))
                tx.execute(PUT)

        with pytest.raises(pgonce.Permanent) as caught:
            put()
        assert caught.value.sqlstate == "23505"
        with once.transaction() as tx:
            pids.append(backend(tx))
            tx.execute("insert into ledger (id, cents) values ('b', 7)")
    assert pids[0] != pids[1]
    assert stored(desk) == [("b", 7), ("old", 100)]


def test_r42_an_error_inside_the_block_frees_its_locks_and_comes_through_as_it_is(desk: Desk) -> None:
    """R42: also where the transaction had already failed, so that nothing but a rollback works in it."""
    desk.sql(LEDGER)
    desk.sql(PUT)

    class OwnError(Exception):
        pass

    def careless(tx: pgonce.GuardedConnection) -> None:
        tx.execute("select from ledger where id = 'a' for update")
        tx.execute("select pg_advisory_xact_lock(7)")
        try:
            tx.execute("select 1 / 0")
        except psycopg.Error:
            raise OwnError("the reason that its author knows") from None

    with pgonce.connect(desk.dsn) as once:
        with pytest.raises(OwnError, match="its author knows"):
            once.do(careless)
        assert desk.sql("select id from ledger for update nowait") == [("a",)]
        assert desk.one("select pg_try_advisory_lock(7)") is True


def test_q54_where_the_position_cannot_be_moved_the_rows_are_not_there_either(desk: Desk) -> None:
    """Q54: data and cursor are one transaction; the next run does the chunk again, once."""
    desk.sql(
        """create function no() returns trigger language plpgsql as
            $$ begin raise exception 'the disk of the cursor is gone' using errcode = '58030'; end $$;
        create trigger no before update of chunks on pgonce.start for each row when (new.chunks = 2)
            execute function no()"""
    )
    path = desk.csv([(number, 10, "x") for number in range(1, 7)])
    with pytest.raises(PgonceError, match="58030"):
        desk.run(path, chunk_rows=2)
    assert desk.effects() == {"1": 10, "2": 10}
    desk.sql("drop trigger no on pgonce.start")
    report = desk.run(path, chunk_rows=2)
    assert (report.exit_code, report.start.applied.rows) == (0, 4)
    assert desk.effects() == {str(number): 10 for number in range(1, 7)}


FINISHED = """select f.event_id from pgonce.effect as f join pgonce.event as e using (job, source, event_id)
join pgonce.run as r on r.run_id = e.run_id where r.finished_at is not null"""


def test_q56_a_reader_can_see_finished_loads_only(desk: Desk) -> None:
    """Q56: a run that was stopped half-way is not among them until it is finished, and then each row once."""
    path = desk.csv([(number, 10, "x") for number in range(1, 7)])
    watching = Watching()
    with pytest.raises(pgonce.Interrupted):
        desk.run(path, chunk_rows=2, observer=watching, interrupted=lambda: len(watching.steps) == 1)
    assert len(desk.effects()) == 2
    assert desk.sql(FINISHED) == []
    desk.run(path, chunk_rows=2)
    assert sorted(desk.sql(FINISHED)) == [(str(number),) for number in range(1, 7)]


def test_q59_a_recorded_error_that_looks_transient_is_answered_and_not_tried_again(desk: Desk) -> None:
    """Q59, I7: the words of a failed event may name 40001; handing it in again reads them, and runs no effect."""
    desk.sql("create table calls (n integer)")
    effect = """insert into calls select count(*) from chunk;
    do $$ begin
        if exists (select from chunk where event_id = '2') then
            raise exception 'could not serialize access [40001]' using errcode = 'P0001';
        end if;
    end $$;"""
    path = desk.csv([(1, 10, "x"), (2, 20, "x")])
    first = desk.run(path, effect=effect)
    assert (first.run.failed.rows, first.run.applied.rows) == (1, 1)
    calls = desk.one("select count(*) from calls")
    other = desk.csv([(2, 20, "x")])
    observer = Watching()
    again = desk.run(other, effect=effect, observer=observer)
    assert (again.run.failed.rows, observer.retries) == (1, [])
    assert desk.one("select count(*) from calls") == calls
    assert "40001" in desk.one("select error from pgonce.event where event_id = '2'")


def test_r17_a_start_killed_between_any_two_of_its_statements_strands_nothing(desk: Desk) -> None:
    """R17: an owner that is gone half-way through its transaction is just taken over; no state lies in between."""
    path = desk.csv([(number, 10, "x") for number in range(1, 4)])
    desk.sql("create table gate (n integer)")
    effect = "insert into gate select 1 from pg_advisory_xact_lock(5)"
    with psycopg.connect(desk.dsn, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(5)")
        clerk = desk.make_clerk()
        with in_thread(desk.run, path, effect=effect, clerk=clerk, attempts=1) as run:
            waiting = "select pid from pg_stat_activity where wait_event = 'advisory' and datname = current_database()"
            [(pid,)] = until(lambda: desk.sql(waiting), "the effect at the gate")
            assert desk.statuses() == {}
            desk.sql("select pg_terminate_backend(%s)", pid)
            holder.execute("select pg_advisory_unlock(5)")
            run.exception(timeout=30)
    report = desk.run(path, effect=effect)
    assert report.exit_code == 0
    assert desk.statuses() == dict.fromkeys(("1", "2", "3"), "completed")


def test_a_swallowed_error_in_an_effect_that_ends_its_transaction_is_never_success(desk: Desk) -> None:
    """Q48, R10: an effect whose transaction is gone at COMMIT is told, and nothing of it is there."""
    path = desk.csv([(1, 10, "x")])
    with pytest.raises(EffectFailed):
        desk.run(path, effect="do $$ begin commit; end $$")
    assert desk.effects() == {}
