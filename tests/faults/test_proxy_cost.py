"""What the proxy does for a statement, counted: two reads, two writes, nothing twice, nothing before it is needed."""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from faults.harness import wait_until
from faults.ledger import ReachProxy, once, rows
from pgonce.crashtest import boundary as at
from pgonce.crashtest import clientstream, peer, session
from pgonce.crashtest.points import Tracker, Trail
from pgonce.crashtest.wire import Kind
from pgonce.errors import ConfigurationError

STATEMENTS = 200


class CountedSocket:
    """A socket that counts the reads and writes of the proxy, each of which is one system call."""

    def __init__(self, sock: socket.socket, calls: Counter[str]) -> None:
        self._sock = sock
        self._calls = calls

    def recv(self, *given: int) -> bytes:
        self._calls["recv"] += 1
        return self._sock.recv(*given)

    def send(self, *given: Any) -> int:
        self._calls["send"] += 1
        return self._sock.send(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class CountedPoll:
    """A poll object that counts how often it is asked."""

    def __init__(self, calls: Counter[str]) -> None:
        self._poll = select.poll()
        self._calls = calls

    def poll(self) -> list[tuple[int, int]]:
        self._calls["poll"] += 1
        return self._poll.poll()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the proxy's system calls. Turns are made long, so that a busy machine does not end one."""
    counted: Counter[str] = Counter()
    made = peer.Peer.__init__

    def make(self: peer.Peer, sock: socket.socket) -> None:
        made(self, sock)
        self.sock = CountedSocket(sock, counted)

    monkeypatch.setattr(peer.Peer, "__init__", make)
    monkeypatch.setattr(peer, "TURN_S", 60.0)
    names = {"POLLIN": select.POLLIN, "POLLOUT": select.POLLOUT}
    monkeypatch.setattr(session, "select", SimpleNamespace(poll=lambda: CountedPoll(counted), **names))
    return counted


@pytest.mark.parametrize("only_watches", [False, True], ids=["may strike", "only watches"])
@pytest.mark.parametrize("prepare", [False, True], ids=["simple", "extended"])
def test_a_statement_costs_two_reads_and_two_writes(
    ledger: str, through: ReachProxy, calls: Counter[str], prepare: bool, only_watches: bool
) -> None:
    """Each direction is one read and one write; nothing asks first whether there is anything to read."""
    with through(ledger, only_watches=only_watches) as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        values = (1,) if prepare else None
        statement = "select id from ledger where id = %s" if prepare else "select id from ledger where id = 1"
        connection.execute(statement, values, prepare=prepare).fetchall()
        before = calls.copy()
        for _ in range(STATEMENTS):
            connection.execute(statement, values, prepare=prepare).fetchall()
        made = calls - before
        assert (made["send"], made["poll"]) == (2 * STATEMENTS, 0)
        assert abs(made["recv"] - 2 * STATEMENTS) <= 1  # the read that waits for the next statement may count or not


def test_a_statement_seen_before_is_not_read_again(ledger: str, through: ReachProxy) -> None:
    """Its text is cut out, put on one line and searched for further statements once, however often it comes."""
    texts = [f"select {number} as said_in_no_other_test" for number in range(5)]
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        before = clientstream.remembered_query.cache_info().misses
        for _ in range(20):
            for text in texts:
                connection.execute(text, prepare=False)
        assert clientstream.remembered_query.cache_info().misses == before + len(texts)
        before = clientstream.remembered_text.cache_info().misses
        for _ in range(20):
            for text in texts:
                connection.execute(text + ", %s", (1,), prepare=False)
        assert clientstream.remembered_text.cache_info().misses == before + len(texts)
        assert sum(one.kind is Kind.QUERY for one in proxy.log) == 20 * len(texts)


def test_points_are_recognised_when_they_are_asked_for(
    ledger: str, through: ReachProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no point is sought the program never waits for one to be recognised; afterwards all of them are."""
    met: list[int] = []
    meet = Tracker.meet

    def counted(self: Tracker, boundary: at.Boundary) -> Any:
        met.append(boundary.number)
        return meet(self, boundary)

    monkeypatch.setattr(Tracker, "meet", counted)
    trail = Trail()
    with through(ledger, lambda one: at.CUT_BEFORE if trail.reaches(one) else at.PASS) as (proxy, dsn):
        with psycopg.connect(dsn, autocommit=True) as connection:
            for key in range(5):
                connection.execute(f"insert into ledger values ({key}, 1)".encode())
        wait_until(lambda: proxy.log[-1].kind is Kind.TERMINATE, "the client's goodbye")
        assert met == []
        assert [one.boundary for one in trail.met()] == proxy.log
    assert len(met) == len(proxy.log) == 7


def test_a_watching_proxy_sees_what_one_that_may_strike_sees(ledger: str, through: ReachProxy) -> None:
    """Forwarding before looking changes neither the points nor what the server last said at each of them."""
    logs = []
    for only_watches in (False, True):
        with through(ledger, only_watches=only_watches) as (proxy, dsn):
            with psycopg.connect(dsn) as connection:
                connection.execute("insert into ledger values (1, 1)")
                with connection.cursor().copy("copy ledger from stdin") as copy:
                    copy.write_row((2, 2))
                with connection.pipeline():
                    connection.execute("select 1")
                    connection.execute("select %s", (1,))
                connection.rollback()
                connection.execute(b"select 1; select 2")
            wait_until(lambda: proxy.log[-1].kind is Kind.TERMINATE, "the client's goodbye")
            logs.append(proxy.log)
    assert logs[0] == logs[1]
    assert {one.status for one in logs[1]} == {"", "I", "T"}
    assert rows(ledger) == []


def test_a_watching_proxy_says_when_it_is_told_to_strike(ledger: str, through: ReachProxy) -> None:
    """It has forwarded the message already: a fault before it would be a lie."""
    with (
        pytest.raises(ConfigurationError, match="only watches"),
        through(ledger, once("select", at.CUT_BEFORE), only_watches=True) as (_, dsn),
        psycopg.connect(dsn) as connection,
        pytest.raises(psycopg.OperationalError),
    ):
        connection.execute("select 1")


def test_what_comes_out_of_turn_comes_all_the_same(ledger: str, through: ReachProxy) -> None:
    """A notification to an idle client, the server's last words, and a client that leaves while the server works."""
    with through(ledger) as (proxy, dsn), psycopg.connect(ledger, autocommit=True) as other:
        with psycopg.connect(dsn, autocommit=True) as listening:
            listening.execute("listen news")
            other.execute("notify news, 'first'")
            assert [one.payload for one in listening.notifies(timeout=10, stop_after=1)] == ["first"]
            other.execute("select pg_terminate_backend(%s, 10000)", (listening.info.backend_pid,))
            with pytest.raises(psycopg.errors.AdminShutdown):
                listening.execute("select 1")
        wait_until(lambda: not proxy.is_serving, "the session of the terminated backend to end")
        sleeping = psycopg.connect(dsn, autocommit=True)
        sleeping.pgconn.send_query(b"select pg_sleep(60)")
        sleeping.pgconn.flush()
        wait_until(lambda: proxy.log[-1].statement == "select pg_sleep(60)", "the statement to be forwarded")
        sleeping.close()
        wait_until(lambda: not proxy.is_serving, "the session of the client that left to end")
        other.execute("select pg_terminate_backend(pid) from pg_stat_activity where query like 'select pg_sleep%'")
