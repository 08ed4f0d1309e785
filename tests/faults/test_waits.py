"""Nothing waits for ever, and a signal inside COMMIT leaves no doubt that need not be."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

import pgonce
from faults.conftest import OwnServer
from faults.harness import wait_until
from pgonce.db import watchdog

TABLES = """
create table account (name text primary key, balance bigint not null);
insert into account (name, balance) values ('shop', 0);
create function at_the_gate() returns trigger language plpgsql as
    $$ begin perform pg_advisory_xact_lock_shared(43); return null; end $$;
create constraint trigger gate after update on account deferrable initially deferred
    for each row execute function at_the_gate();
"""
ADD = "update account set balance = balance + 100 where name = 'shop'"

# What a test may take that waits for the client's own limit: the deadline, the grace, the look-up, and a busy machine.
SOON_S = 20.0


@pytest.fixture
def watcher(own_server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """Yield a connection that looks on, with the account made and an impatient client."""
    monkeypatch.setattr(watchdog, "GRACE_S", 0.3)
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def backend(watcher: psycopg.Connection) -> int | None:
    """Return the backend of the one session of pgonce."""
    row = watcher.execute(
        "select pid from pg_stat_activity where datname = current_database() and application_name = 'pgonce'"
    ).fetchone()
    return row[0] if row else None


def balance(watcher: psycopg.Connection) -> int:
    """Return what is in the account."""
    row = watcher.execute("select balance from account").fetchone()
    assert row is not None
    return int(row[0])


def waits_for(watcher: psycopg.Connection, event: str) -> bool:
    """Say whether the session of pgonce waits for this."""
    return bool(
        watcher.execute(
            "select 1 from pg_stat_activity where application_name = 'pgonce' and wait_event = %s", (event,)
        ).fetchone()
    )


def stands(tx: pgonce.GuardedConnection) -> bool:
    """Look, under the row's lock, whether the money was added."""
    row = tx.execute("select balance = 100 from account where name = 'shop' for update").fetchone()
    assert row is not None
    return bool(row[0])


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Start a thread; a test joins it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_frozen_backend_is_given_up_in_time(own_server: OwnServer, watcher: psycopg.Connection) -> None:
    """R1, FAILURES 2.4: no time-out of the server can fire there; nothing was applied."""
    began_s = time.monotonic()
    with pgonce.connect(own_server.dsn) as once:

        def body(tx: pgonce.GuardedConnection) -> None:
            frozen = backend(watcher)
            assert frozen is not None
            os.kill(frozen, signal.SIGSTOP)
            try:
                tx.execute(ADD)
            finally:
                os.kill(frozen, signal.SIGCONT)

        with pytest.raises(pgonce.Retryable):
            once.do(body, deadline_s=0.5, attempts=9)
    assert time.monotonic() - began_s < SOON_S
    assert balance(watcher) == 0


def test_a_commit_that_is_not_answered_in_time_is_looked_up(own_server: OwnServer, watcher: psycopg.Connection) -> None:
    """CASES R1, FAILURES finding 7: nothing on the server bounds the wait for a standby; the client does."""
    watcher.execute("alter system set synchronous_standby_names = 'ghost'")
    watcher.execute("set synchronous_commit = local")
    watcher.execute("select pg_reload_conf()")
    looks: list[int] = []

    def look(tx: pgonce.GuardedConnection) -> bool:
        looks.append(1)
        watcher.execute("alter system reset synchronous_standby_names")
        watcher.execute("select pg_reload_conf()")
        return stands(tx)

    try:
        began_s = time.monotonic()
        with pgonce.connect(own_server.dsn) as once, once.transaction(deadline_s=0.5, look=look) as tx:
            tx.execute(ADD)
        assert time.monotonic() - began_s < SOON_S
    finally:
        watcher.execute("alter system reset synchronous_standby_names")
        watcher.execute("select pg_reload_conf()")
    assert looks
    assert balance(watcher) == 100


def test_the_first_interrupt_inside_commit_waits_for_its_answer(
    own_server: OwnServer, watcher: psycopg.Connection
) -> None:
    """FAILURES 2.3: Ctrl-C is delivered after COMMIT, and says that it was committed."""
    watcher.execute("select pg_advisory_lock(43)")

    def interrupt() -> None:
        wait_until(lambda: waits_for(watcher, "advisory"), "COMMIT at the gate")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # the signal has to be taken while COMMIT waits; it is not a race: nothing else can end it
        watcher.execute("select pg_advisory_unlock(43)")

    with pgonce.connect(own_server.dsn) as once:
        thread = in_background(interrupt)
        with pytest.raises(KeyboardInterrupt) as caught, once.transaction() as tx:
            tx.execute(ADD)
        thread.join()
        assert caught.value.__notes__ == ["the transaction was committed before this"]
        assert balance(watcher) == 100
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("ends", ["committed", "gone"])
def test_the_second_interrupt_does_not_wait_and_the_outcome_is_looked_up(
    own_server: OwnServer, watcher: psycopg.Connection, ends: str
) -> None:
    """R3: the interrupt comes through once it is known what became of the transaction."""
    watcher.execute("select pg_advisory_lock(43)")
    looked: list[bool] = []

    def interrupt_twice() -> None:
        wait_until(lambda: waits_for(watcher, "advisory"), "COMMIT at the gate")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    def look(tx: pgonce.GuardedConnection) -> bool:
        if ends == "committed":
            watcher.execute("select pg_advisory_unlock(43)")
        looked.append(stands(tx))
        return looked[-1]

    with pgonce.connect(own_server.dsn) as once:
        thread = in_background(interrupt_twice)
        with pytest.raises(KeyboardInterrupt), once.transaction(look=look) as tx:
            tx.execute(ADD)
        thread.join()
        watcher.execute("select pg_advisory_unlock_all()")
        assert balance(watcher) == (100 if looked[-1] else 0)
        assert looked[-1] in (True, False)


def test_signals_are_not_touched_outside_the_main_thread(own_server: OwnServer, watcher: psycopg.Connection) -> None:
    """Only the main thread may set handlers."""
    done: list[str] = []

    def work() -> None:
        with pgonce.connect(own_server.dsn) as once, once.transaction() as tx:
            tx.execute(ADD)
        done.append("done")

    in_background(work).join(SOON_S)
    assert done == ["done"]
    assert balance(watcher) == 100


def test_the_watchdog_ends_with_its_session_and_leaves_others_alone(own_server: OwnServer) -> None:
    """No thread is left, and a socket that later gets the same number is not shut down."""

    def watchdogs() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "pgonce-watchdog"}

    before = watchdogs()
    with pgonce.connect(own_server.dsn) as once:
        with once.transaction() as tx:
            tx.execute("select 1")
        [own] = watchdogs() - before
    wait_until(lambda: not own.is_alive(), "the watchdog to end")


def test_a_signal_that_was_put_off_does_not_hide_a_doubt(own_server: OwnServer, watcher: psycopg.Connection) -> None:
    """R3: one Ctrl-C while COMMIT waits, then the back-end dies: it is looked up first, and the interrupt says so."""
    watcher.execute("select pg_advisory_lock(43)")
    looked: list[bool] = []

    def interrupt_and_terminate() -> None:
        wait_until(lambda: waits_for(watcher, "advisory"), "COMMIT at the gate")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        watcher.execute("select pg_terminate_backend(%s)", (backend(watcher),))
        watcher.execute("select pg_advisory_unlock(43)")

    def look(tx: pgonce.GuardedConnection) -> bool:
        looked.append(stands(tx))
        return looked[-1]

    with pgonce.connect(own_server.dsn) as once:
        thread = in_background(interrupt_and_terminate)
        with pytest.raises(KeyboardInterrupt) as caught:
            once.do(lambda tx: tx.execute(ADD), look=look)
        thread.join()
    assert looked == [False]
    assert caught.value.__notes__ == ["the transaction was looked up: it was not committed"]
    assert balance(watcher) == 0


def test_handlers_that_do_not_raise_are_each_called_as_often_as_they_were_signalled(
    own_server: OwnServer, watcher: psycopg.Connection
) -> None:
    """L6: the second signal is not put off, and the first one is delivered before it; the handlers are put back."""
    heard: list[int] = []

    def hear(number: int, _: object) -> None:
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    watcher.execute("select pg_advisory_lock(43)")

    def signals() -> None:
        wait_until(lambda: waits_for(watcher, "advisory"), "COMMIT at the gate")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            time.sleep(0.2)
        assert heard == [signal.SIGINT, signal.SIGTERM]
        watcher.execute("select pg_advisory_unlock(43)")

    try:
        with pgonce.connect(own_server.dsn) as once:
            thread = in_background(signals)
            once.do(lambda tx: tx.execute(ADD))
            thread.join()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [hear, hear]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert heard == [signal.SIGINT, signal.SIGTERM]
    assert balance(watcher) == 100


def test_the_watchdog_shuts_no_socket_of_somebody_else(own_server: OwnServer, watcher: psycopg.Connection) -> None:
    """The number of a connection that is gone is soon another one's."""
    with pgonce.connect(own_server.dsn) as once, contextlib.ExitStack() as opened:

        def body(tx: pgonce.GuardedConnection) -> list[socket.socket]:
            watcher.execute("select pg_terminate_backend(%s)", (backend(watcher),))
            with contextlib.suppress(psycopg.Error):
                tx.execute("select 1")
            pairs = [opened.enter_context(one) for _ in range(8) for one in socket.socketpair()]
            time.sleep(1.5)  # the deadline and the grace: the watchdog strikes here, if at all
            return pairs

        kept: list[socket.socket] = []
        with pytest.raises(pgonce.PgonceError):
            once.do(lambda tx: kept.extend(body(tx)), deadline_s=0.5, attempts=1)
        for left, right in zip(kept[::2], kept[1::2], strict=True):
            left.send(b"x")
            assert right.recv(1) == b"x"
