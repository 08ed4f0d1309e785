"""The proxy against a real server: it forwards everything faithfully, and counts the same points in equal runs."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import errors

from faults.harness import (
    wait_until,
)
from faults.ledger import ReachProxy, insert_and_commit, once, rows
from pgonce.crashtest import boundary as at
from pgonce.crashtest.proxy import Proxy
from pgonce.crashtest.wire import Kind


@pytest.mark.parametrize("is_tcp", [False, True], ids=["unix", "tcp"])
def test_results_errors_and_notices_pass_unchanged(ledger: str, through: ReachProxy, is_tcp: bool) -> None:
    """A client sees the same results, errors and notices as on a direct connection, over both kinds of socket."""
    with through(ledger, is_tcp=is_tcp) as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        notices: list[str | None] = []
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.execute("do $$ begin raise notice 'hello'; end $$")
        assert notices == ["hello"]
        assert connection.execute("select %s::text || 'é'", ("ü",)).fetchall() == [("üé",)]
        with pytest.raises(errors.DivisionByZero):
            connection.execute("select 1 / 0")
        with pytest.raises(errors.UndefinedTable):
            connection.execute("select * from nowhere where id = %s", (1,))
        assert connection.execute("select 1").fetchone() == (1,)


def test_large_results_and_values_pass_whole(ledger: str, through: ReachProxy) -> None:
    """Many rows, a value longer than any buffer, and a statement that long arrive complete in both directions."""
    big = "x" * 5_000_000
    with through(ledger) as (_, dsn), psycopg.connect(dsn) as connection:
        count = connection.execute("select i, repeat('y', 100) from generate_series(1, 100000) i").fetchall()
        assert len(count) == 100_000
        assert connection.execute("select %s::text", (big,)).fetchone() == (big,)
        assert connection.execute(f"select length('{big}')").fetchone() == (5_000_000,)


def test_copy_passes_both_ways_and_its_failures_too(ledger: str, through: ReachProxy) -> None:
    """COPY in and out move the same rows; a refused row and a client that gives up leave the connection usable."""
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.cursor()
        with cursor.copy("copy ledger from stdin") as copy:
            for key in range(20_000):
                copy.write_row((key, key * 2))
        with cursor.copy("copy (select id from ledger where id < %s order by id) to stdout", (3,)) as copy:
            assert [row[0] for row in copy.rows()] == ["0", "1", "2"]
        with pytest.raises(errors.UniqueViolation), cursor.copy("copy ledger from stdin") as copy:
            copy.write_row((1, 1))
        with pytest.raises(KeyError), cursor.copy("copy ledger from stdin"):
            raise KeyError
        assert cursor.execute("select count(*) from ledger").fetchone() == (20_000,)
        kinds = [boundary.kind for boundary in proxy.log]
    assert kinds.count(Kind.COPY_DONE) == 2
    assert kinds.count(Kind.COPY_FAIL) == 1


def test_pipelines_and_prepared_statements_pass(ledger: str, through: ReachProxy) -> None:
    """A pipeline is one point at its Sync; prepared statements are named by their text although only Bind is sent."""
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        with connection.pipeline():
            for key in range(500):
                connection.execute("insert into ledger values (%s, 1)", (key,))
            counted = connection.execute("select count(*) from ledger").fetchone()
        assert counted == (500,)
        for key in range(3):
            connection.execute("select id from ledger where id = %s", (key,), prepare=True)
    prepared = [boundary for boundary in proxy.log if boundary.statement.startswith("select id from ledger")]
    assert [(boundary.kind, boundary.statement) for boundary in prepared] == [
        (Kind.SYNC, "select id from ledger where id = $1")
    ] * 3
    assert rows(ledger) == [(key, 1) for key in range(500)]


def test_a_pipeline_larger_than_all_buffers_does_not_jam(ledger: str, through: ReachProxy) -> None:
    """While the client still sends, the server's answers flow: neither waits for the other for ever."""
    wide = "z" * 20_000
    with through(ledger) as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection, connection.pipeline():
        cursors = [connection.execute("select %s::text", (wide,)) for _ in range(1_000)]
        assert all(cursor.fetchone() == (wide,) for cursor in cursors)


def test_cancel_reaches_the_running_statement(ledger: str, through: ReachProxy) -> None:
    """A cancel comes on a connection of its own, ends the right statement, and is no boundary."""
    with (
        through(ledger) as (proxy, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(ledger, autocommit=True) as watcher,
    ):
        pid = connection.info.backend_pid

        def cancel() -> None:
            wait_until(
                lambda: (
                    watcher.execute(
                        "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s", (pid,)
                    ).fetchone()
                    == (True,)
                ),
                "the statement to run",
            )
            connection.cancel_safe(timeout=10)

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(errors.QueryCanceled):
            connection.execute("select pg_sleep(60)")
        canceller.join()
        assert {boundary.connection for boundary in proxy.log} == {1}


def wait_until_goodbye(proxy: Proxy) -> None:
    """Wait until the proxy has seen the client's last message, which nobody answers."""
    wait_until(lambda: proxy.log[-1].kind is Kind.TERMINATE, "the client's goodbye")


def test_points_are_named_and_counted_the_same_in_two_runs(ledger: str, through: ReachProxy) -> None:
    """Equal runs have equal points: startup, each statement once whatever its protocol, terminate."""
    logs = []
    for key in (1, 2):
        with through(ledger) as (proxy, dsn):
            insert_and_commit(dsn, key=key)
            wait_until_goodbye(proxy)
            logs.append(proxy.log)
    assert logs[0] == logs[1]
    assert [(boundary.nth, boundary.kind, boundary.statement) for boundary in logs[0]][1:] == [
        (2, Kind.QUERY, "begin"),
        (3, Kind.SYNC, "insert into ledger values ($1, 100)"),
        (4, Kind.QUERY, "commit"),
        (5, Kind.TERMINATE, ""),
    ]


def test_message_points_count_each_execute(ledger: str, through: ReachProxy) -> None:
    """With ``points="message"`` an Execute is a point of its own, also one that is cut after its answer."""
    on_boundary = once("insert", at.CUT_AFTER)
    with through(ledger, on_boundary, points="message") as (proxy, dsn):
        with pytest.raises(psycopg.OperationalError):
            insert_and_commit(dsn)
        assert [(fired.boundary.kind, fired.answer) for fired in proxy.fired] == [(Kind.EXECUTE, "INSERT 0 1")]
    assert rows(ledger) == []


def test_comments_and_white_space_are_left_out_of_the_name(ledger: str, through: ReachProxy) -> None:
    """A statement is recognised by its head, also below a comment."""
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("-- why\n /* and how */\n select\n\t 1")
    assert "select 1" in [boundary.statement for boundary in proxy.log]


def test_connections_are_numbered_and_the_points_on_each(ledger: str, through: ReachProxy) -> None:
    """A point is found again by its connection and its place on it, whatever other connections do meanwhile."""
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as first:
        with psycopg.connect(dsn, autocommit=True) as second:
            first.execute("select 1")
            second.execute("select 2")
            first.execute("select 3")
        named = {boundary.statement: boundary for boundary in proxy.log if boundary.kind is Kind.QUERY}
    assert [(one.connection, one.nth, one.number) for one in named.values()] == [(1, 2, 3), (2, 2, 4), (1, 3, 5)]
