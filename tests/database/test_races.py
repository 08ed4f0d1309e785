"""Two sessions and one event, made deterministic: who waits, who wins, and that the effect is there once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import psycopg
import pytest

from database.jobs import Desk, Watching, in_thread, make_order, soon, until_blocked
from pgonce.engine.apply import Work, apply_chunk
from pgonce.engine.compare import Comparison
from pgonce.engine.job import change, find
from pgonce.engine.reading import chunks
from pgonce.model.cursor import Cursor
from pgonce.model.row import RowReader
from pgonce.sources import open_input


@contextmanager
def open_chunk(desk: Desk, rows: list[tuple[object, ...]]) -> Iterator[tuple[psycopg.Connection, int]]:
    """Apply rows in a transaction that stays open, as another run would; it is rolled back at the end."""
    clerk = desk.make_clerk()
    with open_input(desk.csv(rows)) as source, clerk.session.transaction(soon(clerk), commit=False) as transaction:
        stored = find(transaction, "pay")
        assert stored is not None
        work = Work(
            job="pay", run_id=1, epoch=1, who="another", adopt=False, attempt_budget=9,
            comparison=Comparison(stored.definition),
        )  # fmt: skip
        [chunk] = chunks(source, RowReader(stored.definition, ""), Cursor.start(), lambda: 1000)
        apply_chunk(transaction, work, chunk, lambda _: None)
        assert clerk.session.backend_pid is not None
        yield transaction.connection, clerk.session.backend_pid


INSERT_EVENT = """insert into pgonce.event (amount_cents, run_id, line, epoch, job, source, event_id, status, payload)
"""


@pytest.fixture
def ready(desk: Desk) -> Desk:
    """Give a desk whose job is registered, with one event."""
    desk.run(desk.csv([(0, 1, "first")]))
    return desk


@pytest.mark.parametrize(("mine", "result"), [("x", "already"), ("y", "conflict")])
def test_a_second_inserter_waits_and_then_finds_what_was_committed(ready: Desk, mine: str, result: str) -> None:
    """E4, Q58, Q70: the other commits: ours is a replay, or a conflict when the payload differs; the total is once."""
    path = ready.csv([(7, 100, mine), (8, 1, "z")])
    with open_chunk(ready, [(7, 100, "x")]) as (other, pid), in_thread(ready.run, path) as ours:
        until_blocked(ready, pid)
        assert not ours.done()
        other.execute("commit")
        report = ours.result(timeout=30)
    assert getattr(report.start, result).rows == 1
    assert report.start.applied.rows == 1
    assert ready.effects() == {"0": 1, "7": 100, "8": 1}
    assert ready.one("select count(*) from pgonce.finding") == (result == "conflict")
    assert report.run.balanced
    ready.sound()


def test_a_second_inserter_applies_the_event_when_the_first_rolls_back(ready: Desk) -> None:
    """E4: the other's key vanishes with its transaction; the event is ours."""
    path = ready.csv([(7, 100, "y")])
    with open_chunk(ready, [(7, 100, "x")]) as (other, pid), in_thread(ready.run, path) as ours:
        until_blocked(ready, pid)
        other.execute("rollback")
        assert ours.result(timeout=30).start.applied.rows == 1
    assert ready.effects() == {"0": 1, "7": 100}
    assert ready.one("select payload from pgonce.event where event_id = '7'") == '["y"]'


# A chunk that was known already has the next one asked for: then a lock is what it meets, and not a key.
AFTER_A_KNOWN_ONE = [(0, 1, "first"), (5, 50, "p")]


@pytest.fixture
def pending(ready: Desk) -> Desk:
    """Give a desk with a pending event 5 of 50 cents."""
    ready.run(ready.csv([(5, -50, "p")]))
    ready.sql(
        "update pgonce.event set status = 'pending', amount_cents = 50, attempts = 0, error = null where event_id = '5'"
    )
    return ready


def test_a_pending_row_is_locked_before_it_is_looked_at(pending: Desk) -> None:
    """E4, Q1, Q11: another transaction is completing it; we wait, see it completed, and apply nothing."""
    path = pending.csv(AFTER_A_KNOWN_ONE)
    with (
        open_chunk(pending, [(5, 50, "p"), (6, 1, "")]) as (other, pid),
        in_thread(pending.run, path, chunk_rows=1) as ours,
    ):
        until_blocked(pending, pid)
        assert not ours.done()
        other.execute("commit")
        report = ours.result(timeout=30)
    assert (report.start.already.rows, report.start.applied.rows) == (2, 0)
    assert pending.effects() == {"0": 1, "5": 50, "6": 1}
    pending.sound()


def test_a_pending_row_is_applied_when_the_other_rolls_back(pending: Desk) -> None:
    """E4, E5: and by one of us only; the history says by whom."""
    path = pending.csv(AFTER_A_KNOWN_ONE)
    with (
        open_chunk(pending, [(5, 50, "p"), (6, 1, "")]) as (other, pid),
        in_thread(pending.run, path, chunk_rows=1) as ours,
    ):
        until_blocked(pending, pid)
        other.execute("rollback")
        report = ours.result(timeout=30)
    assert report.start.applied.rows == 1
    assert pending.effects() == {"0": 1, "5": 50}
    assert pending.sql("select action, run_id from pgonce.event_history") == [("applied", report.run_id)]


def test_a_pending_row_that_another_completed_by_hand_is_seen_as_it_is_under_the_lock(pending: Desk) -> None:
    """E4: what counts is the version that is locked, not the one that was read before the wait."""
    path = pending.csv(AFTER_A_KNOWN_ONE)
    with psycopg.connect(pending.dsn) as other:
        other.execute("update pgonce.event set status = 'failed', error = 'by hand' where event_id = '5'")
        with in_thread(pending.run, path, chunk_rows=1) as ours:
            until_blocked(pending, other.info.backend_pid)
            other.commit()
            report = ours.result(timeout=30)
    assert (report.start.failed.rows, report.start.applied.rows) == (1, 0)
    assert pending.effects() == {"0": 1}


def test_a_pending_row_that_is_amended_meanwhile_is_applied_as_it_is_under_the_lock(pending: Desk) -> None:
    """E4, I7: the user's effect and the ledger get the same amount: the one of the version that is locked."""
    pending.sql("create table log (event_id text, cents bigint)")
    effect = "insert into log select event_id, amount_cents from chunk"
    order = make_order(effect=effect, chunk_rows=1)
    pending.clerk.do(lambda transaction: change(transaction, "pay", order.definition, who="me", why="an effect"))
    with psycopg.connect(pending.dsn) as other:
        other.execute(
            """insert into pgonce.event_history (job, source, event_id, step, action, old_status, old_amount_cents,
            old_payload, old_attempts, who, why)
            select job, source, event_id, 1, 'amended', 'failed', amount_cents, payload, 0, 'me', 'typo'
            from pgonce.event where event_id = '5'"""
        )
        other.execute("update pgonce.event set amount_cents = 60 where event_id = '5'")
        with in_thread(pending.run, pending.csv(AFTER_A_KNOWN_ONE), order=order) as ours:
            until_blocked(pending, other.info.backend_pid)
            other.commit()
            report = ours.result(timeout=30)
    assert report.start.applied.rows == 1
    assert pending.effects() == {"0": 1, "5": 60}
    assert pending.sql("select * from log") == [("5", 60)]


def test_overlapping_runs_in_opposite_order_reach_the_user_without_a_deadlock(ready: Desk) -> None:
    """E4, Q60, R50: keys are claimed and locked in one order; any chunk size; every event once."""
    rows = [(number, number, "n") for number in range(1, 121)]
    first, second = ready.csv(rows), ready.csv(list(reversed(rows)))
    watching = Watching(), Watching()
    with (
        in_thread(ready.run, first, clerk=ready.make_clerk(), chunk_rows=7, observer=watching[0]) as one,
        in_thread(ready.run, second, clerk=ready.make_clerk(), chunk_rows=11, observer=watching[1]) as two,
    ):
        reports = one.result(timeout=60), two.result(timeout=60)
    assert sum(report.start.applied.rows for report in reports) == 120
    assert sum(report.start.already.rows for report in reports) == 120
    assert sum(ready.effects().values()) == 1 + sum(range(1, 121))
    assert all(report.run.balanced and report.exit_code == 0 for report in reports)
    assert "40P01" not in watching[0].retries + watching[1].retries


def test_two_chunks_that_cross_wait_for_one_another_in_key_order(ready: Desk) -> None:
    """E4, Q60: a chunk that names b before a claims a first: it waits at a while holding nothing of b."""
    path = ready.csv([("b", 2, ""), ("a", 1, "")])
    with open_chunk(ready, [("a", 1, "")]) as (other, pid), in_thread(ready.run, path) as ours:
        until_blocked(ready, pid)
        other.execute(INSERT_EVENT + "values (2, 1, 9, 1, 'pay', '', 'b', 'failed', '[\"\"]')")  # fmt: skip
        other.execute("commit")
        report = ours.result(timeout=30)
    assert (report.start.already.rows, report.start.failed.rows) == (1, 1)


def test_a_deadlock_with_the_users_own_rows_is_retried(ready: Desk) -> None:
    """R2, R50: 40P01 rolls a chunk back whole; it is done again and the total is once."""
    ready.sql("create table account (id text primary key, cents bigint); insert into account values ('x', 0), ('y', 0)")
    effect = """
    set local deadlock_timeout = '10ms';
    update account set cents = cents + (select sum(amount_cents) from chunk) where id = 'x';
    select pg_advisory_xact_lock(1);
    update account set cents = cents + (select sum(amount_cents) from chunk) where id = 'y'
    """
    observer, clerk = Watching(), ready.make_clerk()
    with psycopg.connect(ready.dsn) as other, psycopg.connect(ready.dsn) as gate:
        gate.execute("select pg_advisory_lock(1)")
        other.execute("set local deadlock_timeout = '60s'")
        other.execute("update account set cents = cents + 1 where id = 'y'")
        path = ready.csv([(7, 5, "")])
        with in_thread(ready.run, path, job="d", effect=effect, observer=observer, clerk=clerk) as ours:
            pid = until_blocked(ready, gate.info.backend_pid)
            with in_thread(other.execute, "update account set cents = cents + 1 where id = 'x'"):
                until_blocked(ready, pid)
                gate.execute("select pg_advisory_unlock(1)")
                gate.commit()
            other.commit()
            report = ours.result(timeout=30)
    assert observer.retries == ["40P01"]
    assert report.start.applied.rows == 1
    assert dict(ready.sql("select id, cents from account")) == {"x": 6, "y": 6}


def test_an_event_is_committed_with_its_position_or_not_at_all(ready: Desk) -> None:
    """E1, E8: whoever looks between two commits sees as many settled lines as there are events and findings."""
    rows = [(number, -1 if number % 5 == 0 else 1, "") if number % 7 else ("", 1, "") for number in range(1, 41)]
    seen = []

    def look(_: int) -> None:
        seen.append(
            ready.sql(
                """select s.lines - 1, (select count(*) from pgonce.event as e where e.run_id = s.run_id)
                + (select count(*) from pgonce.finding as f where f.run_id = s.run_id)
                from pgonce.start as s where s.run_id = 2"""
            )[0]
        )

    ready.run(ready.csv(rows), chunk_rows=3, observer=Watching(look))
    assert all(lines == settled for lines, settled in seen)
    assert all(earlier < later for earlier, later in pairwise(lines for lines, _ in seen))
    assert seen[-1] == (40, 40)


def test_many_sessions_and_one_event(ready: Desk) -> None:
    """Q70, R48: eight runs that each name the event in a file of its own apply it once; nobody gets an error."""
    paths = [ready.csv([("one", 100, "x"), (f"own{number}", 1, "")]) for number in range(8)]
    clerks = [ready.make_clerk() for _ in paths]
    with ThreadPoolExecutor(max_workers=8) as pool:
        reports = list(pool.map(lambda pair: ready.run(pair[0], clerk=pair[1]), zip(paths, clerks, strict=True)))
    assert sum(report.start.applied.rows for report in reports) == 9
    assert sum(report.start.already.rows for report in reports) == 7
    assert ready.effects()["one"] == 100
