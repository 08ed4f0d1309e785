"""Each fault of the proxy against a real server: it does to client and transaction what its name says."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from faults.harness import (
    forked,
    run_limited,
    wait_until,
    wait_until_quiet,
)
from faults.ledger import ReachProxy, insert_and_commit, once, rows
from pgonce.crashtest import boundary as at
from pgonce.crashtest import wire
from pgonce.crashtest.boundary import PASS, Action, Boundary
from pgonce.crashtest.wire import Kind
from pgonce.errors import ConfigurationError


@pytest.mark.parametrize(("action", "expected"), [(at.CUT_BEFORE, []), (at.CUT_AFTER, [(1, 100)])])
def test_a_cut_at_commit_looks_the_same_and_leaves_opposite_truths(
    ledger: str, through: ReachProxy, action: Action, expected: list[tuple[int, int]]
) -> None:
    """Before: nothing is committed. After: it is, though the client only saw its connection break."""
    with through(ledger, once("commit", action)) as (proxy, dsn):
        with pytest.raises(psycopg.OperationalError) as caught:
            insert_and_commit(dsn)
        assert caught.value.sqlstate is None
        assert [fired.answer for fired in proxy.fired] == (["COMMIT"] if expected else [""])
    wait_until_quiet(ledger)
    assert rows(ledger) == expected


@pytest.mark.parametrize("arguments", [None, ()], ids=["simple", "extended"])
def test_an_error_before_a_statement_aborts_the_transaction_in_the_server(
    ledger: str, through: ReachProxy, arguments: tuple[()] | None
) -> None:
    """The client gets the SQLSTATE, the server holds the transaction failed, and nothing of it can be committed."""
    with (
        through(ledger, once("insert into ledger values (2", at.error_before("40001"))) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("begin")
        connection.execute("insert into ledger values (1, 100)")
        with pytest.raises(errors.SerializationFailure):
            connection.cursor(binary=arguments is not None).execute("insert into ledger values (2, 100)", arguments)
        assert connection.info.transaction_status.name == "INERROR"
        with pytest.raises(errors.InFailedSqlTransaction):
            connection.execute("select 1")
        assert connection.execute("commit").statusmessage == "ROLLBACK"
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)


@pytest.mark.parametrize("arguments", [None, ()], ids=["simple", "extended"])
def test_an_error_at_commit_rolls_back_and_leaves_the_session_idle(
    ledger: str, through: ReachProxy, arguments: tuple[()] | None
) -> None:
    """A failed COMMIT ends the transaction: the session is idle, its work undone, and it goes on."""
    with (
        through(ledger, once("commit", at.error_before("40001"))) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("begin")
        connection.execute("insert into ledger values (1, 100)")
        with pytest.raises(errors.SerializationFailure):
            connection.cursor(binary=arguments is not None).execute("commit", arguments)
        assert connection.info.transaction_status.name == "IDLE"
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)
    assert rows(ledger) == []


def test_an_error_in_a_pipeline_aborts_all_of_it(ledger: str, through: ReachProxy) -> None:
    """The unit up to the Sync fails as one; the connection is usable afterwards."""
    with (
        through(ledger, once("insert", at.error_before("40P01"))) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        with pytest.raises(errors.DeadlockDetected), connection.pipeline():
            connection.cursor().executemany("insert into ledger values (%s, 1)", [(key,) for key in range(3)])
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)


def test_an_error_at_the_end_of_copy_takes_its_rows_back(ledger: str, through: ReachProxy) -> None:
    """CopyDone can fail like a statement: the SQLSTATE arrives, no row stays, the connection is usable."""

    def on_boundary(boundary: Boundary) -> Action:
        return at.error_before("40001") if boundary.kind is Kind.COPY_DONE else PASS

    with through(ledger, on_boundary) as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.cursor()
        with pytest.raises(errors.SerializationFailure), cursor.copy("copy ledger from stdin") as copy:
            copy.write_row((1, 1))
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)


def test_a_rollback_and_a_goodbye_cannot_be_failed_with_an_error(ledger: str, through: ReachProxy) -> None:
    """What a server never answers with an error passes, and no fault is claimed."""
    with through(ledger, lambda b: PASS if b.can_fail else at.error_before("40001")) as (proxy, dsn):
        with psycopg.connect(dsn) as connection:
            connection.execute("select 1")
            connection.rollback()
        assert proxy.fired == []


def test_an_error_at_startup_refuses_the_connection(ledger: str, through: ReachProxy) -> None:
    """A connection can be refused with an SQLSTATE, as by a server that is full."""
    with through(ledger, lambda _: at.error_before("53300")) as (_, dsn), pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


@pytest.mark.parametrize("action", [at.CUT_BEFORE, at.CUT_AFTER, at.TERMINATE_BEFORE, at.TERMINATE_AFTER])
@pytest.mark.parametrize("kind", [Kind.STARTUP, Kind.TERMINATE])
def test_faults_at_the_ends_of_a_connection_end_it(
    ledger: str, through: ReachProxy, action: Action, kind: Kind
) -> None:
    """Startup and goodbye can be failed too; what was committed in between stays."""
    with through(ledger, lambda b: action if b.kind is kind else PASS) as (proxy, dsn):
        with contextlib.suppress(psycopg.OperationalError):
            insert_and_commit(dsn)
        wait_until(lambda: len(proxy.fired) == 1, "the fault")
    assert rows(ledger) == ([] if kind is Kind.STARTUP else [(1, 100)])


@pytest.mark.parametrize(
    ("action", "expected"), [(at.TERMINATE_BEFORE, []), (at.TERMINATE_AFTER, [(1, 100)])], ids=["before", "after"]
)
def test_a_terminated_backend_says_so(
    ledger: str, through: ReachProxy, action: Action, expected: list[tuple[int, int]]
) -> None:
    """The client hears 57P01 at its COMMIT, whether or not that was carried out."""
    with through(ledger, once("commit", action)) as (_, dsn), pytest.raises(errors.AdminShutdown):
        insert_and_commit(dsn)
    assert rows(ledger) == expected


@pytest.mark.parametrize(
    ("action", "expected"),
    [(at.kill_client_before(), []), (at.kill_client_after(), [(1, 100)])],
    ids=["before", "after"],
)
def test_a_client_killed_at_commit_dies_on_the_right_side_of_it(
    ledger: str, through: ReachProxy, action: Action, expected: list[tuple[int, int]]
) -> None:
    """SIGKILL before the message is forwarded, or after the server's answer and before the client has it."""
    with through(ledger, once("commit", action)) as (proxy, dsn):
        ended = run_limited(forked(insert_and_commit), dsn, in_child=proxy.close_inherited)
    wait_until_quiet(ledger)
    assert (ended.code, rows(ledger)) == (-signal.SIGKILL, expected)


def test_a_delay_holds_the_statement_back(ledger: str, through: ReachProxy) -> None:
    """The message is forwarded after the pause, not lost."""
    with through(ledger, once("commit", at.delay(0.2))) as (_, dsn):
        began = time.monotonic()
        insert_and_commit(dsn)
        assert time.monotonic() - began >= 0.2
    assert rows(ledger) == [(1, 100)]


class RawClient:
    """A client that sends bytes of its own choice, as no driver does: several units at once, COPY in a unit."""

    def __init__(self, dsn: str) -> None:
        named = conninfo_to_dict(dsn)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(f"{named['host']}/.s.PGSQL.{named['port']}")
        body = f"user\0{named['user']}\0database\0{named['dbname']}\0\0".encode()
        self.sock.sendall(struct.pack("!II", len(body) + 8, 196_608) + body)

    def receive(self, until: str = "") -> str:
        """Return the types of the messages that come, up to the first of this type or the end of the stream."""
        splitter = wire.Splitter()
        tags = ""
        while not (until and until in tags) and (data := self.sock.recv(65_536)):
            tags += "".join(chr(tag) for tag, _, _ in splitter.feed(data)[1])
        return tags


@pytest.fixture
def raw() -> Iterator[Callable[[str], RawClient]]:
    """Give a function that connects a raw client, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda dsn: _connected(dsn, stack)


def _connected(dsn: str, stack: contextlib.ExitStack) -> RawClient:
    client = RawClient(dsn)
    stack.callback(client.sock.close)
    assert client.receive(until="Z").endswith("Z")
    return client


def test_the_answers_of_earlier_units_in_flight_are_not_withheld(
    ledger: str, through: ReachProxy, raw: Callable[[str], RawClient]
) -> None:
    """A cut after the second of two Syncs sent at once keeps back only the second one's answer; both are committed."""
    units = [wire.extended(f"insert into ledger values ({key}, {key})") for key in (1, 2)]
    with through(ledger, once("insert into ledger values (2", at.CUT_AFTER)) as (_, dsn):
        client = raw(dsn)
        client.sock.sendall(b"".join(units))
        assert client.receive() == "12CZ"
    assert rows(ledger) == [(1, 1), (2, 2)]


def test_a_second_statement_is_forwarded_while_the_first_waits(
    ledger: str, through: ReachProxy, raw: Callable[[str], RawClient]
) -> None:
    """A client that sends on before it is answered is not held back: both statements are at the server."""
    with through(ledger) as (proxy, dsn), psycopg.connect(ledger) as blocker:
        client = raw(dsn)
        blocker.execute("lock table ledger")
        for statement in ("select count(*) from ledger", "select 2"):
            client.sock.sendall(wire.extended(statement))
            wait_until(lambda text=statement: proxy.log[-1].statement == text, "the statement to pass")
        blocker.rollback()
        answers = client.receive("Z")
        while answers.count("Z") < 2:
            answers += client.receive("Z")
        assert answers == "12DCZ12DCZ"


def test_answers_are_counted_right_after_a_copy_in_the_extended_protocol(
    ledger: str, through: ReachProxy, raw: Callable[[str], RawClient]
) -> None:
    """The server leaves the Sync sent with such a COPY unanswered; a later cut still waits for its own answer only."""
    with through(ledger, once("insert", at.CUT_AFTER)) as (proxy, dsn):
        client = raw(dsn)
        client.sock.sendall(wire.extended("copy ledger from stdin"))
        assert client.receive(until="G") == "12G"
        client.sock.sendall(wire.frame(b"d", b"1\t1\n") + wire.frame(b"c") + wire.frame(b"S"))
        assert client.receive(until="Z") == "CZ"
        client.sock.sendall(wire.query("insert into ledger values (2, 2)"))
        assert client.receive() == ""
        assert [fired.answer for fired in proxy.fired] == ["INSERT 0 1"]
    assert rows(ledger) == [(1, 1), (2, 2)]


def test_a_copy_in_the_extended_protocol_fails_at_its_sync(
    ledger: str, through: ReachProxy, raw: Callable[[str], RawClient]
) -> None:
    """The Sync that ends it is its one point; an error there takes the rows back."""
    nth_sync = itertools.count(1)

    def on_boundary(boundary: Boundary) -> Action:
        return at.error_before("40001") if boundary.kind is Kind.SYNC and next(nth_sync) == 2 else PASS

    with through(ledger, on_boundary) as (_, dsn):
        client = raw(dsn)
        client.sock.sendall(wire.extended("copy ledger from stdin"))
        client.receive(until="G")
        client.sock.sendall(wire.frame(b"d", b"1\t1\n") + wire.frame(b"c") + wire.frame(b"S"))
        assert client.receive(until="Z") == "EZ"
        client.sock.sendall(wire.query("insert into ledger values (2, 2)"))
        assert client.receive(until="Z") == "CZ"
    assert rows(ledger) == [(2, 2)]


def test_a_unit_that_was_flushed_in_part_still_fails_as_one(
    ledger: str, through: ReachProxy, raw: Callable[[str], RawClient]
) -> None:
    """Statements already sent before the point is reached are undone with it when it is made to fail."""
    insert, sync = wire.extended("insert into ledger values (1, 1)")[:-5], wire.frame(b"S")
    with through(ledger, once("insert", at.error_before("40001"))) as (_, dsn):
        client = raw(dsn)
        client.sock.sendall(insert + wire.frame(b"H"))
        assert client.receive(until="C") == "12C"
        client.sock.sendall(sync)
        assert client.receive(until="Z") == "EZ"
    assert rows(ledger) == []


def test_leaving_the_proxy_frees_threads_and_socket(ledger: str, through: ReachProxy, tmp_path: Path) -> None:
    """Nothing stays behind, also with a client still connected in the middle of a statement."""
    with through(ledger) as (_, dsn):
        connection = psycopg.connect(dsn)
        assert threading.active_count() > 1
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    connection.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pgonce-proxy")]
    assert list((tmp_path / "s").iterdir()) == []
    wait_until_quiet(ledger)


def test_a_broken_callback_is_raised_on_leaving(ledger: str, through: ReachProxy) -> None:
    """A mistake in the test's own callback turns the test red instead of looking like a fault."""

    def broken(_: Boundary) -> Action:
        raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        through(ledger, broken) as (_, dsn),
        contextlib.suppress(psycopg.OperationalError),
    ):
        psycopg.connect(dsn)


def test_the_proxy_refuses_to_kill_its_own_process(ledger: str, through: ReachProxy) -> None:
    """A client in the proxy's process is a mistake of the test, named as one."""
    with (
        pytest.raises(ConfigurationError, match="own process"),
        through(ledger, once("commit", at.kill_client_before())) as (_, dsn),
        contextlib.suppress(psycopg.OperationalError),
    ):
        insert_and_commit(dsn)
