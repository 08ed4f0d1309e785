"""Sessions of workers and of the one they work for (E8): which are kept, how long they may last, what they leave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from database.jobs import Desk, Watching, clerk_on, in_thread
from database.pooling import PROGRAM, pooler
from database.working import PATIENT_S, no_worker_is_left, waiting_in_turn
from pgonce.db import watchdog as watchdog_module
from pgonce.db.session import Session
from pgonce.engine import run as run_module
from pgonce.engine.workers import Ahead, Workers
from pgonce.errors import Interrupted, RunOwned
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
    for _ in range(2):
        session.keep()
        assert bound() == ("0",)
        transact("select 1")
        assert bound() == ("1h",), "the session was not emptied behind SQL of the user"
    session.keep()
    desk.sql("select pg_terminate_backend(%s, 5000)", session.backend_pid)
    session.keep()
    assert bound() == ("0",)
    session.close()


def deadline(seconds: float) -> Deadline:
    """Give a transaction this long from now."""
    return Deadline.after(seconds, watchdog_module.time.monotonic)


def test_a_chunk_has_all_its_time_when_its_turn_comes(desk: Desk) -> None:
    """R6: what it waited is not taken from it, nor is it charged with that; here each was begun with a tenth left."""
    desk.sql("create table bound (name text, milliseconds bigint)")
    begin = Ahead.begin

    def begin_late(self: Ahead, clock: Callable[[], float]) -> bool:
        self.deadline = Deadline.after(PATIENT_S / 10, clock)
        return begin(self, clock)

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
def test_behind_a_pooler_with_fewer_connections_than_workers_no_chunk_waits_for_a_later_one(desk: Desk) -> None:
    """E8: later chunks hold both connections of the pool when the first one needs one; they let go, it goes on."""
    with pooler(desk.dsn) as pool:
        clerk = clerk_on(pool.dsn)
        first, begin, takes = threading.Event(), Ahead.begin, Workers._takes_a_connection

        def begin_last(self: Ahead, clock: Callable[[], float]) -> bool:
            if self.applying.part.begin.position.lines <= 1:
                first.wait(30.0)
            return begin(self, clock)

        def looks(self: Workers, ahead: Ahead) -> bool:
            return first.is_set() and takes(self, ahead)

        limits = {"chunk_rows": 2, "workers": WORKERS, "chunk_deadline_s": PATIENT_S}
        with (
            patch.object(Ahead, "begin", begin_last),
            patch.object(Workers, "_takes_a_connection", looks),
            in_thread(desk.run, numbered(desk, 40), clerk=clerk, **limits) as ours,
        ):
            waiting_in_turn(desk, 2)
            first.set()
            report = ours.result(timeout=30)
        clerk.session.close()
    assert report.run.applied.rows == 40
    desk.sound()
