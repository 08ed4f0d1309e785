"""Every failure that a live server can be brought to is staged under ``Session.transaction``; all of it for real.

Each test compares what was told with what is stored. Where a row of the policy is seen:

| row | here, or where |
|---|---|
| 40001 at a statement, at COMMIT | here: REPEATABLE READ; SERIALIZABLE |
| 40P01; 55P03 at a statement, at COMMIT | here; a whole run: database/test_races.py, database/test_bisect.py |
| 57014 by our time-out, by a cancel, in COMMIT | here |
| 57P01 before, in COMMIT; 57P05; 25P03; 25P04; interrupt | here |
| sockets cut before and after COMMIT | here; a whole run at every COMMIT: database/test_in_doubt.py; at every boundary: faults/test_every_boundary.py; all faults of the proxy: faults/test_proxy_faults.py |
| the resolution of a doubt | database/test_in_doubt.py: it waits, both outcomes, OutcomeUnknown |
| constraints, data, SQL, state, rights, limits (22, 23, 25, 26, 2D, 42, 44, 53400, 54, 0A, P0001) | here, at a statement; deferred ones at COMMIT; halving: database/test_bisect.py |
| 25P02 swallowed; COMMIT answered ROLLBACK | here; the tag: database/test_in_doubt.py |
| 25006 by a setting, by the effect | here; by a standby, promoted: test_policy_deaths.py |
| codes that only a broken server, a pooler or another product sends | test_policy_told.py, told by the proxy |
| crash before, in, after COMMIT; restart; PANIC; 53100; 53300; cancelled synchronous waits | test_policy_deaths.py; a whole run: faults/test_server_deaths.py |
| 57P03 | with a server that is not back yet: faults/test_server_deaths.py (the driver tells no SQLSTATE) |
| acknowledged commits lost | faults/test_lost_commits.py |
| a full pool of connections | there is no pool |
"""  # noqa: E501 - a table

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from faults.harness import wait_until_blocked
from faults.ledger import once, proxies_in
from faults.staging import COMMITTED, Stage, Told, beside, stage_on, write, write_and_wait, write_then
from pgonce.crashtest import boundary as at
from pgonce.crashtest.boundary import Action
from pgonce.db import session as guarded
from pgonce.db.statements import statement as shipped
from pgonce.db.transaction import Transaction
from pgonce.errors import Unreachable
from pgonce.model.policy import Verdict

T, P, A, B, O = Verdict.TRANSIENT, Verdict.PERMANENT, Verdict.AMBIGUOUS, Verdict.BUG, Verdict.OPERATOR  # noqa: E741


@pytest.fixture
def stage(empty_database: str) -> Iterator[Stage]:
    """Give a stage on a fresh database."""
    with stage_on(empty_database) as made:
        yield made


def test_nothing_happens(stage: Stage) -> None:
    """The yardstick: committed, applied, the connection kept, nothing said."""
    assert stage.attempt() == COMMITTED
    assert stage.is_applied()
    assert (stage.said, stage.session.durability_degraded) == ([], False)


# Other transactions.


def test_40001_at_a_statement(stage: Stage) -> None:
    """A row of the snapshot was changed meanwhile: certainly not applied, and tried again on the same connection."""

    def body(transaction: Transaction) -> None:
        transaction.connection.execute("select n from public.place")
        stage.sql("update place set n = n")
        write(transaction)

    assert stage.attempt(body, snapshot=True) == Told(T, "40001", burns=True, kept=True)
    assert not stage.is_applied()
    assert stage.heals()


def test_40001_at_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write skew that the server finds at COMMIT: an ERROR there is a certain abort."""
    serializable = {"begin": "begin isolation level serializable read write"}
    monkeypatch.setattr(guarded, "statement", lambda name, schema: serializable.get(name) or shipped(name, schema))
    stage.sql("create table seat (n integer)")
    with beside(stage.dsn) as other:
        other.execute("begin isolation level serializable")

        def body(transaction: Transaction) -> None:
            for connection in (transaction.connection, other):
                connection.execute("select count(*) from public.seat")
            write(transaction)
            for connection in (transaction.connection, other):
                connection.execute("insert into public.seat values (1)")
            other.execute("commit")

        assert stage.attempt(body) == Told(T, "40001", burns=True, kept=False)
    assert not stage.is_applied()
    assert stage.sql("select count(*) from seat") == [(1,)]
    assert stage.heals()


def test_40p01(empty_database: str) -> None:
    """The victim of a deadlock is rolled back whole."""
    through = make_conninfo(empty_database, options="-c deadlock_timeout=50ms")
    with stage_on(empty_database, through=through) as stage, beside(stage.dsn) as other, beside(stage.dsn) as third:
        stage.sql("create table door (id integer primary key); insert into door values (1), (2)")
        other.execute("set deadlock_timeout = '1h'")

        with ThreadPoolExecutor(1) as pool:

            def body(transaction: Transaction) -> None:
                write(transaction)
                transaction.connection.execute("select from public.door where id = 1 for update")
                other.execute("begin")
                other.execute("select from door where id = 2 for update")
                waiting.append(pool.submit(other.execute, "select from door where id = 1 for update"))
                wait_until_blocked(third, other.info.backend_pid)
                transaction.connection.execute("select from public.door where id = 2 for update")

            waiting: list[object] = []
            assert stage.attempt(body) == Told(T, "40P01", burns=True, kept=True)
        other.execute("rollback")
        assert not stage.is_applied()
        assert stage.heals()


@pytest.mark.parametrize("how", ["nowait", "lock_timeout"])
def test_55p03(stage: Stage, how: str) -> None:
    """Somebody else works on the row: no attempt is used up for it."""
    statements = ["select from public.held for update" + (" nowait" if how == "nowait" else "")]
    if how == "lock_timeout":
        statements.insert(0, "set local lock_timeout = '20ms'")
    stage.sql("create table held (id integer); insert into held values (1)")
    with beside(stage.dsn) as holder:
        holder.execute("begin")
        holder.execute("select from held for update")
        assert stage.attempt(write_then(*statements)) == Told(T, "55P03", burns=False, kept=True)
    assert not stage.is_applied()
    assert stage.heals()


def test_55p03_at_commit(stage: Stage) -> None:
    """A lock that a deferred trigger waits for in vain, until our own limit: a certain abort."""
    with stage.standing(deadline_s=0.3) as (told, _):
        assert told.result() == Told(T, "55P03", burns=False, kept=False)
        assert not stage.is_applied()
    assert stage.heals()


# Cancelled and terminated.


def test_57014_by_our_own_time_out(stage: Stage) -> None:
    """The deadline ends the statement that waits: tried again, if there is time."""
    told = stage.attempt(write_then("select pg_sleep(30)"), deadline_s=0.5)
    assert told == Told(T, "57014", burns=True, kept=True)
    assert not stage.is_applied()
    assert stage.heals()


@pytest.mark.parametrize(("body", "verdict"), [(write_and_wait, O), (write, T)], ids=["before COMMIT", "in COMMIT"])
def test_57014_by_somebody_else(stage: Stage, body: Callable[[Transaction], None], verdict: Verdict) -> None:
    """Before COMMIT a person wants it to stop; inside COMMIT it is a certain abort. Neither uses an attempt up."""
    with stage.standing(body) as (told, backend):
        stage.sql("select pg_cancel_backend(%s)", backend)
        assert told.result() == Told(verdict, "57014", burns=False, kept=verdict is O)
        assert not stage.is_applied()
    assert stage.heals()


@pytest.mark.parametrize(("body", "verdict"), [(write_and_wait, T), (write, A)], ids=["before COMMIT", "in COMMIT"])
def test_57p01(stage: Stage, body: Callable[[Transaction], None], verdict: Verdict) -> None:
    """The same words of the server: before COMMIT nothing was applied; inside COMMIT that has to be looked up."""
    with stage.standing(body) as (told, backend):
        stage.sql("select pg_terminate_backend(%s)", backend)
        assert told.result() == Told(verdict, "57P01", burns=True if verdict is T else None, kept=False)
        assert not stage.is_applied()
    assert stage.heals()


def test_57p05(empty_database: str) -> None:
    """A connection that died between two transactions: BEGIN was refused, and no attempt is used up."""
    with stage_on(empty_database) as stage:
        assert stage.attempt(lambda _: None) == COMMITTED
        connection = stage.session._connection
        assert connection is not None
        connection.execute("set idle_session_timeout = '20ms'")
        stage.wait_gone(stage.backend())
        assert stage.attempt() == Told(T, "57P05", burns=False, kept=False)
        assert stage.heals()


@pytest.mark.parametrize(("after", "verdict"), [(["select 1"], T), ([], A)], ids=["a statement", "COMMIT"])
def test_25p03(stage: Stage, after: list[str], verdict: Verdict) -> None:
    """The client was silent for too long: once more before COMMIT; COMMIT sent into it is in doubt, and not applied."""

    def body(transaction: Transaction) -> None:
        write_then("set local idle_in_transaction_session_timeout = '20ms'")(transaction)
        stage.wait_gone(stage.backend())
        for statement in after:
            transaction.connection.execute(statement)

    assert stage.attempt(body) == Told(verdict, "25P03", burns=True if verdict is T else None, kept=False)
    assert not stage.is_applied()
    if verdict is T:
        assert stage.last.decision.retries == 1
    assert stage.heals()


def has_transaction_timeout(stage: Stage) -> bool:
    return stage.sql("select current_setting('server_version_num')::integer")[0][0] >= 170_000


def test_25p04_before_commit(stage: Stage) -> None:
    """The time-out of the whole transaction ends its connection."""
    if not has_transaction_timeout(stage):
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    timer = ("set local transaction_timeout = 0", "set local transaction_timeout = '50ms'")  # first stopped, then anew
    assert stage.attempt(write_then(*timer, "select pg_sleep(60)")) == Told(T, "25P04", burns=True, kept=False)
    assert stage.last.decision.retries == 1
    assert not stage.is_applied()
    assert stage.heals()


def test_25p04_in_commit(stage: Stage) -> None:
    """A COMMIT that its own triggers hold up is ended soon after the deadline, and is in doubt: it was not applied."""
    if not has_transaction_timeout(stage):
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    stage.sql(
        "create function sleep() returns trigger language plpgsql as"
        " $$ begin perform pg_catalog.pg_sleep(60); return null; end $$;"
        " create constraint trigger sleep after update on place deferrable initially deferred"
        " for each row execute function sleep()"
    )
    assert stage.attempt(deadline_s=0.2) == Told(A, "25P04", burns=None, kept=False)
    assert not stage.is_applied()
    stage.sql("drop trigger sleep on place")
    assert stage.heals()


def test_an_interrupt_before_commit(stage: Stage) -> None:
    """Ctrl-C in a statement passes through; nothing was applied, and the connection is in order."""

    def body(transaction: Transaction) -> None:
        write(transaction)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.attempt(body)
    assert not stage.is_applied()
    assert stage.heals()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_an_interrupt_in_commit(stage: Stage) -> None:
    """The second Ctrl-C inside COMMIT is in doubt: here the driver's cancel came in time, and it was not applied."""
    with beside(stage.dsn) as holder, beside(stage.dsn) as watcher, ThreadPoolExecutor(1) as pool:
        holder.execute("select pg_advisory_lock(51)")

        def interrupt() -> None:
            wait_until_blocked(watcher, stage.backend())
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)  # two that are still waiting to be handled would be one
            os.kill(os.getpid(), signal.SIGINT)

        assert stage.attempt(lambda _: None) == COMMITTED
        interrupted = pool.submit(interrupt)
        assert stage.attempt() == Told(A, None, burns=None, kept=False)
        interrupted.result()
        assert isinstance(stage.last.__cause__, KeyboardInterrupt)
        stage.wait_gone(stage.backend())
    assert not stage.is_applied()
    assert stage.heals()


# The network.


@pytest.mark.parametrize(
    ("where", "action", "verdict", "is_applied"),
    [
        ("insert into public.ledger", at.CUT_BEFORE, T, False),
        ("insert into public.ledger", at.CUT_AFTER, T, False),
        ("commit", at.CUT_BEFORE, A, False),
        ("commit", at.CUT_AFTER, A, True),
    ],
    ids=["before a statement", "after a statement", "before COMMIT", "after COMMIT"],
)
def test_a_cut_socket(
    empty_database: str, tmp_path: Path, where: str, action: Action, verdict: Verdict, is_applied: bool
) -> None:
    """The same error, no SQLSTATE, four times; what it means is decided by how far the transaction had come."""
    with (
        proxies_in(tmp_path)(empty_database, once(where, action)) as (proxy, dsn),
        stage_on(empty_database, through=dsn) as stage,
    ):
        assert stage.attempt() == Told(verdict, None, burns=True if verdict is T else None, kept=False)
        assert len(proxy.fired) == 1
        assert stage.is_applied() is is_applied
        if not is_applied:
            assert stage.heals()


def test_no_connection(empty_database: str) -> None:
    """A server that refuses us is asked until the deadline; its words are told, and nothing was sent."""
    with (
        stage_on(empty_database, through=make_conninfo(empty_database, dbname="no_such_database")) as stage,
        pytest.raises(Unreachable, match="no_such_database"),
    ):
        stage.attempt(deadline_s=0.05)
    assert stage.said == []
