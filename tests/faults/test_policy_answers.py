"""Every answer of the server that is about data, SQL, state, rights or limits, staged under ``Session.transaction``.

What is seen elsewhere stands in the table of test_policy_staged.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faults.staging import COMMITTED, Stage, Told, stage_on, write, write_then
from pgonce.db.transaction import Transaction
from pgonce.model.policy import Verdict

T, P, B, O, R = (  # noqa: E741
    Verdict.TRANSIENT,
    Verdict.PERMANENT,
    Verdict.BUG,
    Verdict.OPERATOR,
    Verdict.REPLAY_CHECK,
)

USERS_TABLES = """
create table account (id integer primary key, cents integer not null check (cents >= 0));
insert into account values (1, 100);
create table entry (account integer references account (id) deferrable, day int4range,
    number integer unique deferrable, exclude using gist (day with &&) deferrable);
insert into entry values (1, '[1,3)', 1);
create view rich as select id, cents from account where cents > 1000 with check option;
create table pgonce.event (id integer constraint event_pkey primary key);
insert into pgonce.event values (1);
create procedure commits() language plpgsql as 'begin commit; end';
"""


@pytest.fixture
def stage(empty_database: str) -> Iterator[Stage]:
    """Give a stage on a fresh database with tables of the user, and one of pgonce's."""
    with stage_on(empty_database) as made:
        made.sql("create schema pgonce")
        made.sql(USERS_TABLES)
        made.sql("create role " + ROLE)
        yield made
        made.sql("drop role " + ROLE)


ROLE = f"pgonce_test_nobody_{os.getpid()}"

TOO_WIDE = """do $$ begin
    execute 'create table t (' || (select string_agg('c' || n || ' int', ',') from generate_series(1, 1601) as n)
        || ')';
end $$"""
TOO_LARGE = """set local temp_file_limit = '64kB'; set local work_mem = '64kB';
select count(*) from (select n from generate_series(1, 100000) as n order by n desc) as s"""

ANSWERS = [
    # Data.
    ("22012", P, "select 1 / 0"),
    ("22003", P, "select 9223372036854775807 + 1"),
    ("22P02", P, "select 'x'::integer"),
    ("22P05", P, r"""select '{"a": "\u0000"}'::jsonb ->> 'a'"""),
    ("22000", P, "do $$ begin raise exception 'other' using errcode = '22000'; end $$"),
    # Constraints of the user, and a key of pgonce's own.
    ("23505", P, "insert into public.account values (1, 5)"),
    ("23505", R, "insert into pgonce.event values (1)"),
    ("23P01", P, "insert into public.entry values (1, '[2,4)', 2)"),
    ("23503", P, "insert into public.entry values (7, null, 3)"),
    ("23514", P, "update public.account set cents = -1"),
    ("23502", P, "insert into public.account values (2, null)"),
    ("44000", P, "insert into public.rich values (2, 5)"),
    ("54011", P, TOO_WIDE),
    ("P0001", P, "do $$ begin raise exception 'no'; end $$"),
    # SQL and the state of the transaction.
    ("42601", B, "selec 1"),
    ("42P01", B, "select 1 from public.no_such_table"),
    ("42703", B, "select no_such_column from public.place"),
    ("0A000", B, "select 1 from other.public.place"),
    ("26000", B, "execute no_such_statement"),
    ("25001", B, "vacuum public.place"),
    ("2D000", B, "call public.commits()"),
    ("25006", B, "set transaction read only; insert into public.ledger values (2, 5)"),
    ("21000", B, "select (select n from generate_series(1, 2) as n)"),
    # Rights and limits.
    ("42501", O, f"set local role {ROLE}; select 1 from public.place"),
    ("3F000", O, "create table no_such_schema.t ()"),
    ("53400", O, TOO_LARGE),
]


@pytest.mark.parametrize(("sqlstate", "verdict", "text"), ANSWERS, ids=[f"{row[0]} {row[1]}" for row in ANSWERS])
def test_an_error_at_a_statement(stage: Stage, sqlstate: str, verdict: Verdict, text: str) -> None:
    """Nothing was applied; the verdict is the table's; the connection is kept unless the next try needs another one."""
    told = stage.attempt(write_then(*text.split(";") if "do $$" not in text else [text]))
    burns = verdict is not O
    assert told == Told(verdict, sqlstate, burns=burns, kept=sqlstate not in {"0A000", "26000"})
    assert not stage.is_applied()
    assert stage.heals()


DEFERRED = [
    ("23505", "insert into public.entry values (1, null, 1)"),
    ("23P01", "insert into public.entry values (1, '[2,4)', 2)"),
    ("23503", "insert into public.entry values (7, null, 3)"),
]


@pytest.mark.parametrize(("sqlstate", "text"), DEFERRED, ids=[row[0] for row in DEFERRED])
def test_a_deferred_constraint_fails_at_commit(stage: Stage, sqlstate: str, text: str) -> None:
    """All statements succeeded; COMMIT is answered with an ERROR, which is a certain abort."""
    told = stage.attempt(write_then("set constraints all deferred", text))
    assert told == Told(P, sqlstate, burns=True, kept=False)
    assert "COMMIT was sent" in stage.last.decision.reason
    assert not stage.is_applied()
    assert stage.heals()


@pytest.mark.parametrize("code", ["P0001", "XX000"])
def test_a_trigger_that_raises_at_commit(stage: Stage, code: str) -> None:
    """A reason of the user's is a certain abort; an internal error is looked up, though here it aborts as well."""
    stage.sql(
        f"create function refuse() returns trigger language plpgsql as"
        f" $$ begin raise exception 'no' using errcode = '{code}'; end $$;"
        " create constraint trigger refuse after insert on account deferrable initially deferred"
        " for each row execute function refuse()"
    )
    told = stage.attempt(write_then("insert into public.account values (2, 5)"))
    in_doubt = Told(Verdict.AMBIGUOUS, code, burns=None, kept=False)
    assert told == (Told(P, code, burns=True, kept=False) if code == "P0001" else in_doubt)
    assert not stage.is_applied()
    assert stage.heals()


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_swallowed_error(stage: Stage, goes_on: bool) -> None:
    """25P02: COMMIT is never sent, for it would be a rollback that nobody hears of; nor does another statement pass."""

    def body(transaction: Transaction) -> None:
        write(transaction)
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            transaction.connection.execute("insert into public.ledger values (1, 100)")
        if goes_on:
            transaction.connection.execute("select 1")

    assert stage.attempt(body) == Told(B, "25P02", burns=True, kept=True)
    assert not stage.is_applied()
    assert stage.heals()


def test_a_value_that_cannot_be_sent(stage: Stage) -> None:
    """The driver refuses a NUL in a text, without a SQLSTATE and with the connection alive: the row is to blame."""

    def body(transaction: Transaction) -> None:
        write(transaction)
        transaction.connection.execute("select %s::text", ("a\0b",))

    assert stage.attempt(body) == Told(P, None, burns=True, kept=True)
    assert not stage.is_applied()
    assert stage.heals()


def test_a_default_of_read_only_is_not_in_force(empty_database: str) -> None:
    """BEGIN says READ WRITE, whatever the role, the database or the server have for a default."""
    through = make_conninfo(empty_database, options="-c default_transaction_read_only=on")
    with stage_on(empty_database, through=through) as stage:
        assert stage.attempt() == COMMITTED
        assert stage.is_applied()
