"""Sessions of workers and of the one they work for (E8): which are kept, how long they may last, what they leave."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from database.jobs import Desk, Watching, clerk_on, in_thread, until, until_blocked
from database.pooling import PROGRAM, pooler
from database.working import PATIENT_S, no_worker_is_left, role_of_few
from pgonce.db import keeping as keeping_module
from pgonce.db import session as session_module
from pgonce.db import watchdog as watchdog_module
from pgonce.db.keeping import Keeper
from pgonce.db.session import Session
from pgonce.engine import run as run_module
from pgonce.engine import workers as workers_module
from pgonce.engine.workers import Ahead
from pgonce.errors import Interrupted, RunOwned, StopRequested
from pgonce.model.deadline import Deadline

WORKERS = 3

BOUNDS = """select name, setting::bigint from pg_settings
    where name in ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')"""


def numbered(desk: Desk, rows: int) -> Path:
    """Write an input of so many events."""
    return desk.csv([(f"{number:03}", 1, "") for number in range(rows)])


def test_a_run_whose_own_session_was_ended_is_still_owned(desk: Desk) -> None:
    """R3: with workers that session idles, and an ended one would say that nobody owns the run."""
    path, clerk = numbered(desk, 60), desk.make_clerk()
    refused: list[str] = []

    def after(number: int) -> None:
        if number == 3:
            desk.sql("select pg_terminate_backend(%s, 5000)", clerk.session.backend_pid)
        if number == 6:
            second = desk.make_clerk()
            with pytest.raises(RunOwned) as owned:
                desk.run(path, clerk=second, chunk_rows=2)
            second.session.close()
            refused.append(str(owned.value))

    report = desk.run(path, clerk=clerk, chunk_rows=2, workers=WORKERS, observer=Watching(after))
    clerk.session.close()
    assert len(refused) == 1
    assert report.run.applied.rows == 60
    assert desk.sql("select epoch, ended_how from pgonce.start") == [(1, "finished")]


def test_the_session_that_idles_is_not_ended_for_it(desk: Desk) -> None:
    """R3: whatever the role's idle_session_timeout says, also after the session was emptied or made again."""
    role = desk.one("select current_user")
    desk.sql(f"alter role {role} in database {desk.one('select current_database()')} set idle_session_timeout = '1h'")
    session = desk.make_clerk().session

    def bound() -> Any:
        assert session._connection is not None
        return session._connection.execute("show idle_session_timeout").fetchone()

    def transact(text: str) -> None:
        with session.transaction(deadline(30.0)) as transaction:
            transaction.runs_user_sql = True
            transaction.connection.execute(text)

    transact("select 1")
    assert bound() == ("1h",)
    keeper = Keeper(session)
    keeper.look()
    assert bound() == ("0",)
    transact("select 1")
    assert bound() == ("0",), "the session was emptied behind SQL of the user, this with it"
    desk.sql("select pg_terminate_backend(%s, 5000)", session.backend_pid)
    keeper.look()
    assert bound() == ("0",)
    session.close()


def deadline(seconds: float) -> Deadline:
    """Give a transaction this long from now."""
    return Deadline.after(seconds, watchdog_module.time.monotonic)


def test_a_chunk_has_all_its_time_when_its_turn_comes(desk: Desk) -> None:
    """R6: what it waited is not taken from it, nor is it charged with that; here each was begun with a tenth left."""
    desk.sql("create table bound (name text, milliseconds bigint)")
    begin = Ahead.begin

    def begin_late(self: Ahead, clock: Callable[[], float], begun: Callable[[], None]) -> None:
        self.deadline = Deadline.after(PATIENT_S / 10, clock)
        begin(self, clock, begun)

    with patch.object(Ahead, "begin", begin_late):
        effect = f"insert into bound {BOUNDS}"
        report = desk.run(numbered(desk, 30), effect=effect, chunk_rows=2, workers=2, chunk_deadline_s=PATIENT_S)
    assert report.run.applied.rows == 30
    least = dict(desk.sql("select name, min(milliseconds) from bound group by 1"))
    assert least.keys() >= {"statement_timeout", "idle_in_transaction_session_timeout"}
    assert all(milliseconds > 900 * PATIENT_S for milliseconds in least.values()), least


def test_a_transaction_whose_deadline_was_moved_lasts_until_the_new_one(desk: Desk) -> None:
    """R6: neither the server nor what watches the socket ends it at the old one."""
    session = desk.make_clerk().session
    session.connect(deadline(30.0))
    with (
        patch.object(watchdog_module, "GRACE_S", 0.0),
        session.transaction(deadline(0.25), commit=False) as transaction,
    ):
        session.extend(transaction, deadline(PATIENT_S))
        transaction.connection.execute("select pg_sleep(0.5)")
        bounds = dict(transaction.connection.execute(BOUNDS).fetchall())
    session.close()
    assert min(bounds.values()) > 900 * PATIENT_S


def test_what_a_failed_effect_left_on_its_session_is_gone_before_it_is_tried_again(desk: Desk) -> None:
    """R1: a lock of the session, taken inside a function, would have the next try, on another session, wait for it."""
    desk.sql("create sequence tried")
    desk.sql(
        """create function lock_it() returns void language plpgsql as
        $$ begin perform pg_advisory_lock(7); end $$;
        create function fail_once() returns void language plpgsql as
        $$ begin if nextval('public.tried') = 1 then raise exception 'no' using errcode = '40001'; end if; end $$"""
    )
    path, clerk = numbered(desk, 40), desk.make_clerk()
    limits = {"chunk_rows": 10, "workers": 2, "chunk_deadline_s": PATIENT_S}
    with in_thread(desk.run, path, clerk=clerk, effect="select lock_it(); select fail_once()", **limits) as ours:
        assert ours.result(timeout=30).run.applied.rows == 40
    clerk.session.close()
    desk.sound()


def test_where_a_thread_cannot_be_started_nothing_is_left_of_the_others(desk: Desk) -> None:
    """E8: the error is the caller's to know; no thread, no connection and no transaction stays behind it."""
    start, started = threading.Thread.start, []

    def start_first(self: threading.Thread) -> None:
        if self.name == "pgonce-worker":
            started.append(self)
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
        start(self)

    path, clerk = numbered(desk, 40), desk.make_clerk()
    with (
        patch.object(threading.Thread, "start", start_first),
        pytest.raises(RuntimeError, match="can't start"),
    ):
        desk.run(path, clerk=clerk, chunk_rows=4, workers=WORKERS)
    clerk.session.close()
    no_worker_is_left(desk)
    assert desk.run(path, chunk_rows=4).run.applied.rows == 40


def test_a_worker_that_was_reading_when_the_run_stopped_ends_too(desk: Desk) -> None:
    """E8, R8: what it has read is nobody's any more."""
    chunks, cut, stopping = run_module.chunks, Session.abort, threading.Event()

    def read(*arguments: Any) -> Any:
        for number, chunk in enumerate(chunks(*arguments)):
            if number == 4:
                assert stopping.wait(30.0)
            yield chunk

    def abort(self: Session) -> None:
        stopping.set()
        cut(self)

    watching, clerk = Watching(), desk.make_clerk()
    with (
        patch.object(run_module, "chunks", read),
        patch.object(Session, "abort", abort),
        pytest.raises(Interrupted),
    ):
        desk.run(
            numbered(desk, 20),
            clerk=clerk,
            chunk_rows=2,
            workers=4,
            observer=watching,
            interrupted=lambda: len(watching.steps) == 3,
        )
    clerk.session.close()
    no_worker_is_left(desk)


@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (apt-get install pgbouncer)")
@pytest.mark.parametrize("fails", ["", "select fail_once();"])
def test_behind_a_pooler_with_fewer_connections_than_workers_no_chunk_waits_for_a_later_one(
    desk: Desk, fails: str
) -> None:
    """E8: later chunks hold the pool's connections when one is needed in turn, at first or again; they let go."""
    desk.sql("create sequence tried")
    desk.sql(
        """create function fail_once() returns void language plpgsql as
        $$ begin if nextval('public.tried') = 3 then raise exception 'no' using errcode = '40001'; end if; end $$"""
    )
    with pooler(desk.dsn) as pool:
        clerk = clerk_on(pool.dsn)
        limits = {"chunk_rows": 2, "workers": 4, "chunk_deadline_s": PATIENT_S}
        with in_thread(desk.run, numbered(desk, 40), clerk=clerk, effect=fails or None, **limits) as ours:
            report = ours.result(timeout=30)
        clerk.session.close()
    assert report.run.applied.rows == 40
    desk.sound()


def test_a_worker_that_was_connecting_when_the_run_stopped_begins_nothing(desk: Desk) -> None:
    """E8, R8: it would wait for what somebody else holds, for as long as a chunk may last."""
    desk.run(desk.csv([("0", 1, "")]))
    made, cut, stopping, asked = session_module.connect, Session.abort, threading.Event(), threading.Event()

    def connect(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name == "pgonce-worker":
            asked.set()
            assert stopping.wait(30.0)
        return made(*arguments, **options)

    def abort(self: Session) -> None:
        cut(self)
        stopping.set()

    clerk = desk.make_clerk()
    with psycopg.connect(desk.dsn) as stranger:
        stranger.execute(
            """insert into pgonce.event (job, source, event_id, status, amount_cents, payload, run_id, line, epoch)
            values ('pay', '', '000', 'failed', 1, '[""]', 1, 9, 1)"""
        )
        with (
            patch.object(session_module, "connect", connect),
            patch.object(Session, "abort", abort),
            pytest.raises(Interrupted),
        ):
            desk.run(numbered(desk, 20), clerk=clerk, chunk_rows=2, workers=2, interrupted=asked.is_set)
        clerk.session.close()
        assert [thread.name for thread in threading.enumerate() if thread.name == "pgonce-worker"] == []
        stranger.rollback()
    no_worker_is_left(desk)


def test_a_forked_child_ends_no_connection_of_its_parent(desk: Desk) -> None:
    """E8: what a child does on its way out is its own."""
    session = desk.make_clerk().session
    with session.transaction(deadline(30.0), commit=False) as transaction:
        child = os.fork()
        if child == 0:
            session.abort()
            os._exit(0)
        os.waitpid(child, 0)
        assert transaction.connection.execute("select 1").fetchone() == (1,)
    session.close()


def test_a_session_that_leads_nowhere_any_more_is_replaced(desk: Desk) -> None:
    """R6: a network that has forgotten an idle connection says nothing; the server is asked now and then."""
    session = desk.make_clerk().session
    session.connect(deadline(30.0))
    keeper, frozen = Keeper(session), session.backend_pid
    assert frozen is not None
    keeper.look()
    os.kill(frozen, signal.SIGSTOP)
    try:
        with (
            patch.object(watchdog_module, "GRACE_S", 0.0),
            patch.object(keeping_module, "WAIT_S_MAX", 0.2),
            patch.object(keeper, "_ask_again_s", 0.0),
        ):
            keeper.look()
            assert not session.is_connected or session.backend_pid != frozen
    finally:
        os.kill(frozen, signal.SIGCONT)
    session.close()


def test_the_session_of_the_run_idles_from_the_start(desk: Desk) -> None:
    """R3: the first chunk may take long to store, and the role ends sessions that idle."""
    role = desk.one("select current_user")
    desk.sql(f"alter role {role} in database {desk.one('select current_database()')} set idle_session_timeout = '1h'")
    desk.run(desk.csv([("0", 1, "")]))
    clerk, bounds = desk.make_clerk(), list[Any]()

    def look() -> bool:
        if clerk.session._connection is not None and not bounds:
            bounds.append(clerk.session._connection.execute("show idle_session_timeout").fetchone())
        return False

    with psycopg.connect(desk.dsn) as stranger:
        stranger.execute(
            """insert into pgonce.event (job, source, event_id, status, amount_cents, payload, run_id, line, epoch)
            values ('pay', '', '000', 'failed', 1, '[""]', 1, 9, 1)"""
        )
        limits = {"chunk_rows": 2, "workers": 2, "interrupted": look}
        with in_thread(desk.run, numbered(desk, 20), clerk=clerk, **limits) as ours:
            until_blocked(desk, stranger.info.backend_pid)
            until(lambda: bounds, "a look at the session")
            stranger.rollback()
            ours.result(timeout=30)
    clerk.session.close()
    assert bounds == [("0",)]


def test_what_stops_a_run_leaves_no_lock_of_the_effect(desk: Desk) -> None:
    """E7: a bad row ends the chunk after the effect has run: what is before it is settled on another session."""
    desk.sql("create function lock_it() returns void language plpgsql as $$ begin perform pg_advisory_lock(7); end $$")
    rows = [(f"{number:03}", "bad" if number == 25 else 1, "") for number in range(40)]
    limits = {"chunk_rows": 10, "workers": 2, "chunk_deadline_s": PATIENT_S, "on_error": "stop"}
    clerk = desk.make_clerk()
    with in_thread(desk.run, desk.csv(rows), clerk=clerk, effect="select lock_it()", **limits) as ours:
        assert isinstance(ours.exception(timeout=30), StopRequested)
    clerk.session.close()
    assert len(desk.effects()) == 25


def test_the_run_gets_a_connection_from_its_workers(desk: Desk) -> None:
    """A role with as few connections as workers, which have taken all of them when the run itself needs one again."""
    role = role_of_few(desk)
    desk.sql(f"create sequence tried; grant all on tried to {role}")
    desk.sql(
        """create function fail_once() returns void language plpgsql as
        $$ begin if nextval('public.tried') = 12 then raise exception 'no' using errcode = '40001'; end if; end $$"""
    )
    clerk = clerk_on(psycopg.conninfo.make_conninfo(desk.dsn, user=role))

    def after(number: int) -> None:
        if number == 3:
            ended = clerk.session.backend_pid
            desk.sql("select pg_terminate_backend(%s, 5000)", ended)
            until(
                lambda: (
                    desk.one("select count(*) from pg_stat_activity where usename = %s and pid <> %s", role, ended) == 2
                ),
                "two workers that have all connections",
            )

    try:
        limits = {"chunk_rows": 2, "workers": 2, "chunk_deadline_s": PATIENT_S, "observer": Watching(after)}
        with (
            patch.object(workers_module, "REST_S", 0.0),
            patch.object(workers_module, "CONNECT_S_MAX", 0.2),
            in_thread(desk.run, numbered(desk, 60), clerk=clerk, effect="select fail_once()", **limits) as ours,
        ):
            assert ours.result(timeout=60).run.applied.rows == 60
        clerk.session.close()
    finally:
        no_worker_is_left(desk)
        desk.sql(f"drop owned by {role}; drop role {role}")
