"""The user's SQL in the checkpoint's transaction: what it sees, what it may do, and what it may not."""

from __future__ import annotations

import pytest

from database.jobs import Desk, make_order
from pgonce.errors import ConfigurationError, EffectFailed, StopRequested

ACCOUNTS = (
    "create table account (id text primary key, cents bigint not null); insert into account values ('a', 0), ('b', 0)"
)
ADD = """
insert into account (id, cents)
select account, sum(amount_cents) from chunk where account <> '' group by account
on conflict (id) do update set cents = account.cents + excluded.cents
"""
ROWS = [(1, 100, "a"), (2, 50, "a"), (3, 7, "b"), (4, 9, ""), (5, 1, "a"), (2, 50, "a"), (6, 2, "c")]


def balances(desk: Desk) -> dict[str, int]:
    """Return the cents of every account."""
    return dict(desk.sql("select id, cents from account order by id"))


@pytest.mark.parametrize(
    ("checkpoint", "chunk_rows"),
    [("item", 1000), ("chunk", 1), ("chunk", 2), ("chunk", 7), ("chunk", 1000), ("all", 2)],
)
def test_balances_are_the_same_for_every_chunk_size(desk: Desk, checkpoint: str, chunk_rows: int) -> None:
    """E1, E6, FAILURES 2.4: several rows for one account, and none, in a chunk; a replayed row is not in the chunk."""
    desk.sql(ACCOUNTS)
    path = desk.csv(ROWS, header="id,amount,account")
    desk.run(path, effect=ADD, checkpoint=checkpoint, chunk_rows=chunk_rows, on_error="quarantine")
    assert balances(desk) == {"a": 151, "b": 7, "c": 2}
    assert sum(desk.effects().values()) == 169
    desk.run(path, effect=ADD, checkpoint=checkpoint, chunk_rows=chunk_rows)
    desk.run(desk.csv(list(reversed(ROWS)), header="id,amount,account"), effect=ADD)
    assert balances(desk) == {"a": 151, "b": 7, "c": 2}


def test_the_effect_is_not_called_for_a_chunk_without_rows_to_apply(desk: Desk) -> None:
    """I2: replays and rejected rows never reach the user's SQL."""
    desk.sql("create table called (n bigint)")
    effect = "insert into called select count(*) from chunk"
    desk.run(desk.csv([(1, 1, "x"), ("", 2, ""), (1, 1, "x")]), effect=effect, chunk_rows=1)
    desk.run(desk.csv([(1, 1, "x")]), effect=effect)
    assert desk.sql("select n from called") == [(1,)]


def test_a_verify_that_returns_rows_refuses_the_rows_that_cause_it(desk: Desk) -> None:
    """E7: the check runs in the same transaction; what it returns is in the reason; the other rows are applied."""
    desk.sql(ACCOUNTS)
    verify = "select id, cents from account where cents > 120"
    report = desk.run(desk.csv(ROWS, header="id,amount,account"), effect=ADD, verify=verify)
    assert balances(desk) == {"a": 101, "b": 7, "c": 2}
    assert desk.statuses()["2"] == "failed"
    error = desk.one("select error from pgonce.event where event_id = '2'")
    assert error.startswith("the check at line 1 of verify.sql returned rows: a, 150")
    assert (report.exit_code, report.run.failed.rows) == (1, 2)


@pytest.mark.parametrize(
    "text",
    ["update a set x = 1; commit", "begin; select 1", "select 1; rollback", "savepoint s", "set transaction read only",
     "start transaction", "prepare transaction 'x'", "end", "abort", "release s"],
)  # fmt: skip
def test_transaction_control_is_refused_before_anything_is_written(text: str) -> None:
    """FAILURES 2.4, 25P01: the effect is part of a transaction that is not its own."""
    with pytest.raises(ConfigurationError, match=r"line 1"):
        make_order(effect=text)


def test_a_block_that_commits_is_refused_by_the_server_and_stops_the_run(desk: Desk) -> None:
    """2D000: what is hidden inside a DO block or a procedure fails; the position stays before the chunk."""
    desk.sql("create table t (n bigint); create procedure p() language plpgsql as $$ begin commit; end $$")
    for effect in ("do $$ begin commit; end $$", "insert into t select 1; call p()"):
        with pytest.raises(EffectFailed) as caught:
            desk.run(desk.csv([(1, 1, "x")]), effect=effect, job=effect[:5], also=True)
        assert caught.value.sqlstate == "2D000"
    assert desk.statuses() == {}
    assert {lines for _, _, lines in desk.positions()} == {0}
    assert desk.one("select count(*) from t") == 0


def test_an_error_that_plpgsql_catches_is_the_users_own_business(desk: Desk) -> None:
    """R10: an exception block is a subtransaction of its own; the chunk commits with what it did instead."""
    desk.sql("create table t (n bigint)")
    effect = """
    do $$ begin
        perform 1 / 0;
    exception when division_by_zero then
        insert into t select count(*) from chunk;
    end $$
    """
    assert desk.run(desk.csv([(1, 1, ""), (2, 1, "")]), effect=effect).exit_code == 0
    assert desk.one("select n from t") == 2


@pytest.mark.parametrize("is_local", ["true", "false"])
def test_a_commit_is_durable_whatever_the_effect_sets(desk: Desk, is_local: str) -> None:
    """E4: synchronous_commit is on again before COMMIT, though the effect turned it off."""
    desk.sql("create table seen (durable text)")
    desk.sql(
        """create function look() returns trigger language plpgsql as $$
        begin insert into public.seen values (current_setting('synchronous_commit')); return null; end $$;
        create constraint trigger t after insert on pgonce.effect deferrable initially deferred
        for each row execute function look()"""
    )
    effect = f"select set_config('synchronous_commit', 'off', {is_local})"
    desk.run(desk.csv([(1, 1, ""), (2, 1, "")]), effect=effect, chunk_rows=1)
    assert desk.sql("select durable from seen") == [("on",), ("on",)]


def test_a_deferred_trigger_of_the_user_finds_the_users_tables_at_commit(desk: Desk) -> None:
    """E1, Q38: what runs at COMMIT is the user's, and is to be run as in the user's own sessions."""
    desk.sql("create table log (event_id text); create table audit (event_id text)")
    desk.sql(
        """create function audit_it() returns trigger language plpgsql as $$
        begin insert into audit values (new.event_id); return null; end $$;
        create constraint trigger t after insert on log deferrable initially deferred
        for each row execute function audit_it()"""
    )
    desk.run(desk.csv([(1, 1, "")]), effect="insert into log select event_id from chunk")
    assert desk.sql("select * from audit") == [("1",)]


def test_columns_with_names_of_pgonces_own_get_a_prefix(desk: Desk) -> None:
    """The relation chunk: event_id, source, line, amount_cents are pgonce's; a file's column is then file_line."""
    desk.sql("create table t (line bigint, file_line text, file_source text, id text)")
    effect = "insert into t select line, file_line, file_source, id from chunk"
    desk.run(desk.csv([(1, 5, "L9", "S")], header="id,amount,line,source"), effect=effect)
    assert desk.sql("select * from t") == [(2, "L9", "S", "1")]


def test_records_are_in_the_chunk_whole_and_by_the_fields_the_definition_names(desk: Desk) -> None:
    """F1: NDJSON fields are an open set; `record` has them all, exact."""
    desk.sql("create table t (event_id text, id text, amount text, deep text, big text, gone text)")
    effect = """
    insert into t select event_id, id, amount, record -> 'deep' ->> 0, record ->> 'big', record ->> 'gone' from chunk
    """
    desk.run(
        desk.ndjson(['{"id":1,"amount":5,"deep":["x"],"big":12345678901234567890.5}', '{"id":2,"amount":6}']),
        effect=effect,
    )
    assert desk.sql("select * from t order by 1") == [
        ("1", "1", "5", "x", "12345678901234567890.5", None),
        ("2", "2", "6", None, None, None),
    ]


def test_declared_columns_have_their_sql_types(desk: Desk) -> None:
    """I5: text unless declared; a timestamp without an offset is UTC whatever the session's zone; null is null."""
    desk.sql(
        "do $$ begin execute format('alter database %I set timezone = ''Asia/Tokyo''', current_database()); end $$"
    )
    desk.sql("create table t (n bigint, d numeric, b boolean, day date, at timestamptz, j jsonb, plain text)")
    effect = "insert into t select n, d, b, day, at, j, plain from chunk"
    types = {"n": "int", "d": "decimal", "b": "bool", "day": "date", "at": "timestamp", "j": "json"}
    path = desk.csv(
        [
            (1, 1, "007", "1.50", "true", "2024-02-29", "2024-02-29T12:00:00", "[1]", "007"),
            (2, 1, "x", "1", "true", "2024-02-29", "2024-02-29T12:00:00", "1", ""),
        ],
        header="id,amount,n,d,b,day,at,j,plain",
    )  # fmt: skip
    report = desk.run(path, effect=effect, types=types)
    assert report.run.rejected.rows == 1
    [(n, d, b, day, at, j, plain)] = desk.sql(
        "select n, d::text, b, day::text, (at at time zone 'utc')::text, j::text, plain from t"
    )
    assert (n, d, b, day, at, j, plain) == (7, "1.50", True, "2024-02-29", "2024-02-29 12:00:00", "[1]", "007")


def test_a_whole_input_is_applied_or_nothing_is(desk: Desk) -> None:
    """E6: with --checkpoint all any finding applies nothing, and the row is named; quarantine applies the others."""
    desk.sql(ACCOUNTS)
    path = desk.csv([(1, 100, "a"), (2, "x", "a"), (3, 5, "b")], header="id,amount,account")
    with pytest.raises(StopRequested, match=r"nothing was applied: line 3: .*'x'"):
        desk.run(path, effect=ADD, checkpoint="all", chunk_rows=1)
    assert (balances(desk), desk.statuses(), desk.findings()) == ({"a": 0, "b": 0}, {}, [])
    report = desk.run(path, effect=ADD, checkpoint="all", chunk_rows=1, on_error="quarantine")
    assert balances(desk) == {"a": 100, "b": 5}
    assert (report.run.applied.rows, report.run.rejected.rows, report.exit_code) == (2, 1, 1)


def test_the_effect_of_a_whole_input_runs_once_over_all_of_it(desk: Desk) -> None:
    """E6: the relation chunk holds every row to be applied, though the input is read in pieces."""
    desk.sql("create table called (n bigint)")
    desk.run(
        desk.csv([(number, 1, "") for number in range(25)]),
        effect="insert into called select count(*) from chunk", checkpoint="all", chunk_rows=4,
    )  # fmt: skip
    assert desk.sql("select n from called") == [(25,)]
    assert desk.one("select chunks from pgonce.start") == 1


def test_a_whole_input_whose_effect_fails_applies_nothing_and_marks_no_row(desk: Desk) -> None:
    """E6, E7: there is no bisecting a whole; the position stays at the beginning; a later start applies it."""
    desk.sql(ACCOUNTS + ";alter table account add constraint small check (cents < 120)")
    path = desk.csv(ROWS, header="id,amount,account")
    with pytest.raises(EffectFailed, match=r"nothing was applied.*23514"):
        desk.run(path, effect=ADD, checkpoint="all", chunk_rows=2)
    assert (balances(desk), desk.statuses(), desk.positions()) == ({"a": 0, "b": 0}, {}, [(1, 1, 0)])
    desk.sql("alter table account drop constraint small")
    assert desk.run(path, effect=ADD, checkpoint="all", chunk_rows=2).exit_code == 0
    assert balances(desk) == {"a": 151, "b": 7, "c": 2}


def test_a_negative_amount_is_failed_for_good_and_says_how_to_amend(desk: Desk) -> None:
    """E3, I7: an effect cannot be below zero; the event keeps its reason and answers with it ever after."""
    path = desk.csv([(1, -5, "x"), (2, 5, "y")])
    assert desk.run(path).exit_code == 1
    error = desk.one("select error from pgonce.event where event_id = '1'")
    assert "the amount -5 cents is below zero" in error
    assert "pgonce events amend 1 --job JOB --amount N --why TEXT" in error
    again = desk.run(desk.csv([(1, -5, "x")]))
    assert (again.start.failed.rows, again.start.failed.cents) == (1, -5)
    assert desk.effects() == {"2": 5}
