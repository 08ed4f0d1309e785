"""What an effect leaves on the session is no part of the next chunk, and behind a pooler none of the next job."""

from __future__ import annotations

import pytest

from database.jobs import Desk
from pgonce.errors import ConfigurationError

ACCOUNTS = """
create table account (name text primary key, cents bigint not null);
insert into account values ('a', 0), ('b', 0)
"""
SUM_UP = "as select note as name, sum(amount_cents)::bigint as cents from chunk group by note"
ADD = "update account as a set cents = a.cents + s.cents from summed as s where s.name = a.name"
ROWS = [(1, 100, "a"), (2, 100, "a"), (3, 100, "b"), (4, 100, "b")]


@pytest.mark.parametrize("create", ["create temp table if not exists", "create temporary table"])
def test_a_temporary_table_is_new_for_each_chunk(desk: Desk, create: str) -> None:
    """E1: with the rows of the chunk before in it, their money would move twice, and theirs not at all."""
    desk.sql(ACCOUNTS)
    report = desk.run(desk.csv(ROWS), effect=f"{create} summed {SUM_UP}; {ADD}", chunk_rows=2)
    assert report.exit_code == 0
    assert desk.sql("select * from account order by 1") == [("a", 200), ("b", 200)]


def test_a_view_a_sequence_and_an_index_of_the_session_go_too(desk: Desk) -> None:
    """Whatever lives among the temporary objects: the second chunk makes its own."""
    effect = (
        "create temp sequence numbers; create temp view seen as select 1 as one;"
        " create temp table summed (n bigint); create index on summed (n); insert into summed select nextval('numbers')"
    )
    assert desk.run(desk.csv(ROWS), effect=effect, chunk_rows=1).run.applied.rows == 4


def test_a_setting_of_the_session_is_not_met_by_the_next_chunk(desk: Desk) -> None:
    """A function may set more than SQL is allowed to: on a connection of our own it is reset."""
    desk.sql("create table seen (what text)")
    effect = "insert into seen values (current_setting('my.day', true)); select set_config('my.day', 'monday', false)"
    desk.run(desk.csv(ROWS), effect=effect, chunk_rows=2)
    assert [value or None for (value,) in desk.sql("select what from seen")] == [None, None]


def test_a_lock_of_the_session_taken_by_a_function_is_let_go_after_commit(desk: Desk) -> None:
    """R43: nobody waits for a run that is over, or for a chunk that is committed."""
    desk.sql("create function locked() returns void language sql as 'select pg_advisory_lock(7)'")
    clerk = desk.make_clerk()
    desk.run(desk.csv(ROWS), clerk=clerk, effect="select locked()", chunk_rows=2)
    assert desk.sql("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]
    clerk.session.close()


@pytest.mark.parametrize(
    "text",
    [
        "select pg_advisory_lock(7)",
        "select PG_CATALOG.pg_try_advisory_lock(7) from chunk",
        "select 1 where pg_try_advisory_lock_shared(1, 2)",
        "perform_nothing; select pg_advisory_lock_shared(1)",
    ],
)
def test_a_lock_of_the_session_is_refused_where_it_is_seen(desk: Desk, text: str) -> None:
    """R43, R44: it would stay with a pooled connection; the lock of the transaction does what is meant."""
    with pytest.raises(ConfigurationError, match="function of the same name with xact"):
        desk.run(desk.csv(ROWS), effect=text)
    assert desk.run(desk.csv(ROWS), effect="select pg_advisory_xact_lock(7), 'pg_advisory_lock(7)'").exit_code == 0
