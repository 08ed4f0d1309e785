"""COMMIT was sent and no answer came: the outcome is established by a row, and nothing is applied twice or left out."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from database.jobs import Desk, Watching, clerk_on, in_thread, soon, until, until_blocked
from pgonce.crashtest import boundary as at
from pgonce.crashtest.boundary import PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.engine import doubt
from pgonce.engine.bookkeeping import Clerk
from pgonce.errors import OutcomeUnknown, PgonceError

ROWS = [(1, 10, "a"), (2, -5, "b"), ("", 3, ""), (1, 11, "c"), (3, 30, "d"), (1, 10, "a"), (4, 40, "e")]
LOG = "create table log (event_id text, cents bigint)"
WRITE = "insert into log select event_id, amount_cents from chunk"

# Definition and registration, acquisition, three chunks and the finish.
COMMITS = 6


@contextmanager
def failing(desk: Desk, nth: int, action: Action) -> Iterator[tuple[Clerk, Proxy]]:
    """Give a clerk whose n-th COMMIT meets this fault."""
    seen = [0]

    def on_boundary(boundary: Boundary) -> Action:
        seen[0] += boundary.is_commit
        return action if boundary.is_commit and seen[0] == nth else PASS

    with Proxy.of_dsn(desk.dsn, on_boundary=on_boundary) as proxy:
        clerk = clerk_on(proxy.dsn(desk.dsn))
        with closing(clerk.session):
            yield clerk, proxy


@pytest.fixture
def logged(desk: Desk) -> Desk:
    """Give a desk with a table that shows a second write."""
    desk.sql(LOG)
    return desk


def right(desk: Desk) -> None:
    """Check the one end there is."""
    assert desk.effects() == {"1": 10, "3": 30, "4": 40}
    assert sorted(desk.sql("select * from log")) == [("1", 10), ("3", 30), ("4", 40)]
    assert [(line, kind) for line, kind, _ in desk.findings()] == [(4, "rejected"), (5, "conflict")]
    assert desk.statuses()["2"] == "failed"
    desk.sound()


@pytest.mark.parametrize("action", [at.CUT_BEFORE, at.CUT_AFTER, at.TERMINATE_BEFORE, at.TERMINATE_AFTER])
@pytest.mark.parametrize("nth", range(1, COMMITS + 1))
def test_a_lost_commit_is_resolved_and_the_run_goes_on(logged: Desk, nth: int, action: Action) -> None:
    """R3, R1, Q48, Q49: before or after the server's COMMIT, in every transaction of a run: the end is the same."""
    path = logged.csv(ROWS)
    with failing(logged, nth, action) as (clerk, proxy):
        report = logged.run(path, effect=WRITE, chunk_rows=3, clerk=clerk)
        assert len(proxy.fired) == 1
    right(logged)
    counts = report.run
    assert (counts.applied.rows, counts.already.rows, counts.failed.rows) == (3, 1, 1)
    assert counts.balanced
    assert report.start == report.run
    assert logged.run(path, effect=WRITE, chunk_rows=3).shortcut


def test_a_run_has_as_many_commits_as_these_tests_fail(logged: Desk) -> None:
    """The list above is complete: no transaction of a run goes untested."""
    with failing(logged, 0, PASS) as (clerk, proxy):
        logged.run(logged.csv(ROWS), effect=WRITE, chunk_rows=3, clerk=clerk)
        assert sum(boundary.is_commit for boundary in proxy.log) == COMMITS


@pytest.mark.parametrize("action", [at.CUT_BEFORE, at.CUT_AFTER])
def test_a_lost_commit_of_a_whole_input(logged: Desk, action: Action) -> None:
    """R3, E6: one big transaction is resolved by the same row."""
    with failing(logged, 4, action) as (clerk, proxy):
        logged.run(logged.csv(ROWS), effect=WRITE, checkpoint="all", on_error="quarantine", chunk_rows=2, clerk=clerk)
        assert len(proxy.fired) == 1
    right(logged)


def test_a_lost_commit_of_a_refusal(logged: Desk) -> None:
    """R3, E7: the transaction that records a failed row may be in doubt too."""
    logged.sql("alter table log add check (cents <> 30)")
    for nth in range(4, 9):
        with failing(logged, nth, at.CUT_AFTER) as (clerk, _):
            path = logged.csv([(f"{nth}-{row}", cents, "") for row, cents in enumerate((10, 30, 20))])
            report = logged.run(path, effect=WRITE, clerk=clerk)
            assert (report.run.applied.rows, report.run.failed.rows) == (2, 1)
            assert report.run.balanced
    assert sorted(logged.sql("select cents, count(*) from log group by 1")) == [(10, 5), (20, 5)]


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
def test_an_error_at_commit_is_a_certain_abort_and_is_retried(logged: Desk, sqlstate: str) -> None:
    """R2, Q51: severity ERROR is an answer; the chunk is done again as a whole."""
    observer = Watching()
    with failing(logged, 5, at.error_before(sqlstate)) as (clerk, _):
        logged.run(logged.csv(ROWS), effect=WRITE, chunk_rows=3, clerk=clerk, observer=observer)
    assert observer.retries == [sqlstate]
    right(logged)


def test_a_commit_that_is_answered_with_rollback_is_not_taken_for_success(logged: Desk) -> None:
    """R10, Q50: the tag is looked at; psycopg says nothing."""
    connection = logged.clerk.session.connect(soon(logged.clerk))
    original = connection.execute

    def swallow(query: object, *arguments: object, **options: object) -> object:
        if query == "commit" and logged.one("select count(*) from pgonce.start") == 1 and not spoiled:
            spoiled.append(True)
            with pytest.raises(psycopg.errors.DivisionByZero):
                original("select 1 / 0")
        return original(query, *arguments, **options)

    spoiled: list[bool] = []
    connection.execute = swallow
    with pytest.raises(PgonceError, match="the server answered COMMIT with ROLLBACK"):
        logged.run(logged.csv(ROWS), effect=WRITE)
    assert spoiled
    del connection.execute
    assert (logged.effects(), logged.positions()) == ({}, [(1, 1, 0)])
    logged.run(logged.csv(ROWS), effect=WRITE)
    right(logged)


BARRIER = """
create function gate() returns trigger language plpgsql as $$
begin
    perform set_config(name, '0', true) from pg_settings
    where name in ('client_connection_check_interval', 'lock_timeout', 'transaction_timeout');
    perform pg_advisory_xact_lock_shared(1);
    return null;
end $$;
create constraint trigger t after insert on pgonce.effect deferrable initially deferred
for each row when (new.event_id = '3') execute function gate()
"""


@contextmanager
def lost_inside_commit(desk: Desk, **options: object) -> Iterator[tuple[Future[Any], int, psycopg.Connection]]:
    """Run a job whose connection breaks while its COMMIT goes on in the server; give its future and old backend."""
    desk.sql(BARRIER)
    clerk = desk.make_clerk()
    with psycopg.connect(desk.dsn, autocommit=True) as gate:
        gate.execute("select pg_advisory_lock(1)")
        with in_thread(
            desk.run, desk.csv(ROWS, name="in.csv"), clerk=clerk, effect=WRITE, chunk_rows=3, **options
        ) as run:
            old = until_blocked(desk, gate.info.backend_pid)
            connection = clerk.session._connection
            assert connection is not None
            with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
            try:
                yield run, old, gate
            finally:
                gate.execute("select pg_advisory_unlock_all()")


def test_the_resolution_waits_for_a_commit_that_is_still_going_on(logged: Desk) -> None:
    """R3, FAILURES 1.3: a plain read would say `not applied`, and the chunk would be applied twice a moment later."""
    with lost_inside_commit(logged) as (run, old, gate):
        waiting = until_blocked(logged, old)
        assert "for no key update of s" in logged.one("select query from pg_stat_activity where pid = %s", waiting)
        assert not run.done()
        gate.execute("select pg_advisory_unlock(1)")
        report = run.result(timeout=30)
    right(logged)
    assert report.run.balanced


def test_a_commit_that_ends_in_an_abort_after_all_is_done_again(logged: Desk) -> None:
    """R3: the resolver gets the lock, finds the position where it was, and the chunk is applied anew."""
    with lost_inside_commit(logged) as (run, old, gate):
        until_blocked(logged, old)
        logged.sql("select pg_terminate_backend(%s)", old)
        until(
            lambda: not logged.sql("select 1 from pg_stat_activity where pid = %s", old), "the end of the old backend"
        )
        gate.execute("select pg_advisory_unlock(1)")
        run.result(timeout=30)
    right(logged)


@pytest.mark.parametrize("ends", ["committed", "aborted"])
@pytest.mark.parametrize("retry_on", [{}, {"23503": 9, "XX000": 9}])
def test_an_outcome_that_cannot_be_established_in_time_is_said_to_be_unknown(
    logged: Desk, ends: str, retry_on: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: neither success nor failure, whatever else is tried again; the same command again finds out."""
    monkeypatch.setattr(doubt, "LOOK_S_MIN", 0.3)
    monkeypatch.setattr(doubt, "SLICE_S", 0.1)
    with lost_inside_commit(logged, chunk_deadline_s=2.0, retry_on=retry_on) as (run, old, gate):
        with pytest.raises(OutcomeUnknown, match=r"COMMIT of chunk 2 of run 1 was sent.*Run the same command again"):
            run.result(timeout=30)
        assert OutcomeUnknown.maybe_committed
        if ends == "aborted":
            logged.sql("select pg_terminate_backend(%s)", old)
        gate.execute("select pg_advisory_unlock(1)")
        until(
            lambda: not logged.sql("select 1 from pg_stat_activity where pid = %s", old), "the end of the old backend"
        )
    report = logged.run(logged.folder / "in.csv", effect=WRITE, chunk_rows=3)
    right(logged)
    assert report.run.balanced


def test_a_connection_that_is_lost_before_commit_leaves_nothing(logged: Desk) -> None:
    """E1, R2: every statement of a run may lose its connection; it is done again as a whole."""
    with failing(logged, 0, PASS) as (clerk, proxy):
        logged.run(logged.csv([("warm", 1, "")]), effect=WRITE, chunk_rows=3, clerk=clerk)
        count = len(proxy.log)
    logged.sql("truncate log")
    for number in range(2, count, 3):
        rows = [(f"{number}-{row}", 5, "") for row in range(2)]

        def on_boundary(boundary: Boundary, number: int = number) -> Action:
            return at.CUT_BEFORE if boundary.number == number else PASS

        with Proxy.of_dsn(logged.dsn, on_boundary=on_boundary) as proxy:
            clerk = clerk_on(proxy.dsn(logged.dsn))
            with closing(clerk.session):
                report = logged.run(logged.csv(rows), effect=WRITE, chunk_rows=3, clerk=clerk)
        assert (report.run.applied.rows, report.exit_code) == (2, 0)
    assert logged.sql("select event_id from log group by 1 having count(*) > 1") == []
    assert logged.one("select count(*) from log") == 2 * len(range(2, count, 3))
