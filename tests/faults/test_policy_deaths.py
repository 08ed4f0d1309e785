"""The server dies, or waits for a standby, under ``Session.transaction``: what was told agrees with what is recovered.

What is seen elsewhere stands in the table of test_policy_staged.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import make_clerk
from faults.conftest import OwnServer
from faults.harness import wait_until
from faults.kills import Command, write_events
from faults.kills import command as run_command
from faults.staging import (
    COMMITTED,
    Body,
    Stage,
    Told,
    beside,
    crash_within,
    stage_on,
    wait_accepts,
    write,
    write_and_wait,
)
from pgonce import server as embedded
from pgonce.db.schema import migrate
from pgonce.db.session import DEGRADED
from pgonce.db.transaction import Transaction
from pgonce.model.policy import Verdict
from servers_plugin import chosen_binaries, create_database, drop_database

T, A = Verdict.TRANSIENT, Verdict.AMBIGUOUS

BODIES = pytest.mark.parametrize(
    ("body", "verdict"), [(write_and_wait, T), (write, A)], ids=["before COMMIT", "in COMMIT"]
)


@pytest.fixture
def stage(own_server: OwnServer) -> Iterator[Stage]:
    """Give a stage on a server that may be crashed."""
    with stage_on(own_server.dsn) as made:
        yield made


@BODIES
def test_a_crash(stage: Stage, own_server: OwnServer, body: Callable[[Transaction], None], verdict: Verdict) -> None:
    """An immediate shutdown tells no SQLSTATE; nothing of an open transaction is recovered, nor of this COMMIT."""
    with stage.standing(body) as (told, _):
        own_server.server.crash()
        assert told.result() == Told(verdict, None, burns=True if verdict is T else None, kept=False)
    own_server.server.start()
    assert not stage.is_applied()
    assert stage.heals()


@BODIES
@pytest.mark.parametrize("whose", ["its own", "another"])
def test_kill_9_of_a_backend(stage: Stage, body: Callable[[Transaction], None], verdict: Verdict, whose: str) -> None:
    """All sessions die with one of them; the bystander hears no SQLSTATE either."""
    with beside(stage.dsn) as other, crash_within(stage.dsn), stage.standing(body) as (told, backend):
        os.kill(backend if whose == "its own" else other.info.backend_pid, signal.SIGKILL)
        assert told.result() == Told(verdict, None, burns=True if verdict is T else None, kept=False)
    assert not stage.is_applied()
    assert stage.heals()


@BODIES
def test_a_restart(stage: Stage, own_server: OwnServer, body: Callable[[Transaction], None], verdict: Verdict) -> None:
    """A shutdown in order says 57P01, before COMMIT and inside of it."""
    with stage.standing(body) as (told, _):
        own_server.server.restart()
        assert told.result() == Told(verdict, "57P01", burns=True if verdict is T else None, kept=False)
    assert not stage.is_applied()
    assert stage.heals()


def test_a_crash_after_commit(stage: Stage, own_server: OwnServer) -> None:
    """What was acknowledged is there after the recovery; the session finds its connection dead and makes another."""
    assert stage.attempt() == COMMITTED
    own_server.server.crash()
    own_server.server.start()
    assert stage.is_applied()
    told = stage.attempt(lambda _: None)
    assert (told.verdict, told.burns, told.kept) == (T, False, False)
    assert stage.attempt(lambda _: None).verdict is Verdict.COMMITTED


# A synchronous standby that is not there: COMMIT is durable here, and waits.


@pytest.fixture(scope="module")
def lonely() -> Iterator[embedded.ScratchServer]:
    """A server that waits for a standby which does not exist, except in sessions that say otherwise."""
    settings = {"fsync": "off", "synchronous_standby_names": "ghost", "synchronous_commit": "local"}
    with embedded.scratch(settings=settings, binaries=chosen_binaries()) as server:
        yield server


@pytest.fixture
def alone(lonely: embedded.ScratchServer) -> Iterator[Stage]:
    """Give a stage on that server."""
    dsn = create_database(lonely)
    with stage_on(dsn) as made:
        yield made
    wait_accepts(lonely.dsn)
    drop_database(lonely, dsn)


WAITING = "select pid from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'"


def wait_for_the_standby(stage: Stage) -> int:
    """Wait until a COMMIT waits for the standby; return its backend."""
    wait_until(lambda: bool(stage.sql(WAITING)), "a COMMIT that waits for its standby")
    return int(str(stage.sql(WAITING)[0][0]))


@contextlib.contextmanager
def waiting(stage: Stage, body: Body = write) -> Iterator[tuple[Future[Told], int]]:
    """Start an attempt whose COMMIT waits for the standby."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(stage.attempt, body)
        try:
            yield future, wait_for_the_standby(stage)
        finally:
            with contextlib.suppress(Exception):
                stage.sql(f"select pg_terminate_backend(pid) from ({WAITING}) as waiting")


def test_a_cancelled_wait_is_a_success_with_degraded_durability(alone: Stage) -> None:
    """The server warns and answers COMMIT: it is told as committed, and once that it stands on one server."""
    with waiting(alone) as (told, backend):
        assert alone.sql("select n from place") == [(0,)]
        alone.sql("select pg_cancel_backend(%s)", backend)
        assert told.result() == COMMITTED
    assert alone.is_applied()
    assert alone.session.durability_degraded
    with waiting(alone, body=lambda tx: tx.connection.execute("update public.place set n = n")) as (told, backend):
        alone.sql("select pg_cancel_backend(%s)", backend)
        assert told.result() == COMMITTED
    assert alone.said == [DEGRADED]


def test_a_session_that_hears_no_warnings_is_told_all_the_same(alone: Stage) -> None:
    """What the database says about messages does not hide that a standby is behind."""
    quietly = "alter database %I set client_min_messages = error"
    alone.sql(f"do $$ begin execute format('{quietly}', current_database()); end $$")
    with waiting(alone) as (told, backend):
        alone.sql("select pg_cancel_backend(%s)", backend)
        assert told.result() == COMMITTED
    assert alone.said == [DEGRADED]


def test_a_terminated_wait_is_in_doubt_and_was_committed(alone: Stage) -> None:
    """The connection dies without an answer to COMMIT: it is looked up, and found; the warning before it is heard."""
    with waiting(alone) as (told, backend):
        alone.sql("select pg_terminate_backend(%s)", backend)
        assert told.result() == Told(A, None, burns=None, kept=False)
    assert alone.is_applied()
    assert alone.session.durability_degraded
    assert alone.said == [DEGRADED]


def test_kill_9_in_the_wait_is_in_doubt_and_was_committed(alone: Stage) -> None:
    """Nothing was said at all; recovery brings the commit back."""
    with crash_within(alone.dsn), waiting(alone) as (told, backend):
        os.kill(backend, signal.SIGKILL)
        assert told.result() == Told(A, None, burns=None, kept=False)
    assert alone.is_applied()
    assert not alone.session.durability_degraded


@pytest.mark.parametrize("code", ["01000", "57P01"])
def test_a_warning_of_the_users_own_at_commit_means_nothing(alone: Stage, code: str) -> None:
    """RAISE WARNING in a deferred trigger has the same severity and SQLSTATE, and is not the server's wait."""
    alone.sql(
        "create function warn() returns trigger language plpgsql as $$ begin"
        " perform set_config('synchronous_commit', 'local', true);"
        f" raise warning 'canceling wait' using errcode = '{code}';"
        " return null; end $$;"
        " create constraint trigger warn after insert on ledger deferrable initially deferred"
        " for each row execute function warn()"
    )
    assert alone.attempt() == COMMITTED
    assert alone.is_applied()
    assert not alone.session.durability_degraded
    assert alone.said == []


@contextlib.contextmanager
def every_wait_cancelled(stage: Stage) -> Iterator[None]:
    """Cancel every wait for the standby as long as the block lasts."""
    ended = threading.Event()

    def cancel() -> None:
        with beside(stage.dsn) as connection:
            while not ended.is_set():
                connection.execute(f"select pg_cancel_backend(pid) from ({WAITING}) as waiting")

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_run_says_once_that_its_commits_stand_on_one_server(alone: Stage, tmp_path: Path) -> None:
    """On standard error, once for all of its commits; a second start, which commits nothing, has nothing to say."""
    events = write_events(tmp_path / "in.csv", range(20))
    with every_wait_cancelled(alone):
        clerk = make_clerk(alone.dsn)
        with contextlib.closing(clerk.session):
            clerk.do(migrate)
        for times in (1, 0):
            with Command(run_command(alone.dsn, events, chunk_rows=5)) as running:
                assert running.wait() == 0, running.output
                assert running.output.count("a COMMIT stands on this server alone") == times
    assert alone.sql("select count(*), sum(amount_cents) from pgonce.effect") == [(20, sum(events.cents.values()))]
