"""One guarded transaction at a time, and nothing of it outside of it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

import pgonce
from database.shop import ADD, balance


def test_a_second_transaction_inside_the_first_is_refused(once: pgonce.Once, other: psycopg.Connection) -> None:
    """E1: BEGIN inside a transaction is only a warning, and the inner COMMIT would commit what the outer one did."""

    def outer(tx: pgonce.GuardedConnection) -> None:
        tx.execute(ADD)
        once.do(lambda inner: inner.execute("insert into seen values ('x')"))

    with pytest.raises(pgonce.ConfigurationError, match="open on this connection already"):
        once.do(outer)
    assert balance(other) == 0

    def suspended() -> Iterator[None]:
        with once.transaction() as tx:
            tx.execute(ADD)
            yield

    generator = suspended()
    next(generator)
    with pytest.raises(pgonce.ConfigurationError, match="open on this connection already"):
        once.do(lambda tx: tx.execute(ADD))
    generator.close()
    assert balance(other) == 0
    once.do(lambda tx: tx.execute(ADD))
    assert balance(other) == 100


def test_threads_do_not_share_a_transaction(once: pgonce.Once, other: psycopg.Connection) -> None:
    """Refused, with nothing sent: what is told to have been applied is what is stored."""
    told: list[str] = []

    def work() -> None:
        for _ in range(30):
            try:
                once.do(lambda tx: tx.execute(ADD))
                told.append("applied")
            except pgonce.ConfigurationError:
                told.append("refused")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(told) <= {"applied", "refused"}
    assert balance(other) == 100 * told.count("applied") > 0


def test_a_connection_is_of_no_use_after_its_block(once: pgonce.Once, other: psycopg.Connection) -> None:
    """CASES R7: what came after it would be committed by itself."""
    with once.transaction() as tx:
        tx.execute(ADD)
    opening = tx.copy("copy seen from stdin").__enter__
    for call in (lambda: tx.execute(ADD), lambda: tx.executemany(ADD, [()]), opening):
        with pytest.raises(pgonce.ConfigurationError, match="after the end of its transaction"):
            call()
    assert balance(other) == 100


def begins_only(tx: pgonce.GuardedConnection) -> Iterator[None]:
    """A body that runs nothing until somebody iterates over it."""
    tx.execute(ADD)
    yield


async def waits_only(tx: pgonce.GuardedConnection) -> None:
    """A body that runs nothing until somebody awaits it."""
    tx.execute(ADD)


def test_a_body_that_has_only_begun_is_no_success(once: pgonce.Once, other: psycopg.Connection) -> None:
    """A generator function and a coroutine function return at once."""
    with pytest.raises(pgonce.ConfigurationError, match="returned generator"):
        once.do(begins_only)
    made = []

    def coroutine(tx: pgonce.GuardedConnection) -> object:
        made.append(waits_only(tx))
        return made[0]

    with pytest.raises(pgonce.ConfigurationError, match="returned coroutine"):
        once.do(coroutine)
    made[0].close()
    assert balance(other) == 0


def many_with_a_nul(tx: pgonce.GuardedConnection) -> None:
    tx.executemany("insert into seen values (%s)", [("a",), ("x\0",), ("c",)])


def one_that_cannot_be_sent(tx: pgonce.GuardedConnection) -> None:
    tx.execute("insert into seen values (%s)", (object(),))


def a_surrogate(tx: pgonce.GuardedConnection) -> None:
    tx.execute("insert into seen values (%s)", ("\ud800",))


def a_bad_row_of_a_copy(tx: pgonce.GuardedConnection) -> None:
    with tx.copy("copy seen from stdin") as copy:
        copy.write_row(("a",))
        with contextlib.suppress(Exception):
            copy.write_row((object(),))


@pytest.mark.parametrize("fails", [many_with_a_nul, one_that_cannot_be_sent, a_surrogate, a_bad_row_of_a_copy])
def test_what_the_driver_refuses_and_the_program_swallows_fails_the_transaction(
    once: pgonce.Once, other: psycopg.Connection, fails: Callable[[pgonce.GuardedConnection], None]
) -> None:
    """CASES R10: the server never heard of it, so its state says nothing; some of the rows would be missing."""

    def careless() -> None:
        with once.transaction() as tx:
            tx.execute(ADD)
            with contextlib.suppress(Exception):
                fails(tx)

    with pytest.raises(pgonce.EffectFailed, match="the first that failed was"):
        careless()
    assert balance(other) == 0
    assert other.execute("select count(*) from seen").fetchone() == (0,)


def test_nothing_else_is_run_while_a_copy_is_open(once: pgonce.Once) -> None:
    """The driver would wait for itself for ever; who swallows the refusal has not done what was asked."""

    def asks_meanwhile() -> None:
        with once.transaction() as tx, tx.copy("copy account to stdout") as copy:
            with pytest.raises(pgonce.ConfigurationError, match="while a COPY"):
                tx.execute("select 1")
            assert len(list(copy)) == 2

    with pytest.raises(pgonce.EffectFailed, match="the first that failed was select 1"):
        asks_meanwhile()


@pytest.mark.parametrize(
    "leaves",
    [
        "create temporary table account as select 'shop' as name, 0::bigint as balance",
        "select set_config('role', 'pg_monitor', false)",
        "select pg_advisory_lock(7)",
        "listen something",
    ],
)
def test_nothing_of_one_transaction_reaches_the_next(once: pgonce.Once, other: psycopg.Connection, leaves: str) -> None:
    """A temporary table would even take the money of the next transaction. Committed or not."""
    with contextlib.suppress(pgonce.ConfigurationError):
        once.do(lambda tx: tx.execute(leaves))
    once.do(lambda tx: tx.execute(ADD))
    assert balance(other) == 100

    def fails() -> None:
        with once.transaction() as tx:
            tx.execute(leaves)
            raise InterruptedError

    with pytest.raises((InterruptedError, pgonce.ConfigurationError)):
        fails()
    once.do(lambda tx: tx.execute(ADD))
    assert balance(other) == 200
    assert other.execute("select pg_try_advisory_lock(7)").fetchone() == (True,)


def test_a_forked_child_neither_commits_nor_ends_its_parents_transaction(
    once: pgonce.Once, other: psycopg.Connection
) -> None:
    """The child has the same socket; it leaves the block, works by itself, and closes what is its own."""

    def child() -> None:
        once.do(lambda tx: tx.execute("insert into seen values ('child')"))

    with once.transaction() as tx:
        tx.execute(ADD)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(pgonce.ConfigurationError):
                child()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert balance(other) == 0
    assert balance(other) == 100
    pid = os.fork()
    if pid == 0:
        child()
        once._clerk.session.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    once.do(lambda tx: tx.execute(ADD))
    assert balance(other) == 200
    assert other.execute("select what from seen").fetchall() == [("child",)]


def test_an_interrupt_before_commit_is_sent_rolls_back(
    once: pgonce.Once, other: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: nothing stays open for the next transaction to commit."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pgonce.db.session.deferred_signals", interrupted)
        with pytest.raises(KeyboardInterrupt):
            once.do(lambda tx: tx.execute(ADD))
    once.do(lambda tx: tx.execute("select 1"))
    assert balance(other) == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), None, "5"])
def test_a_deadline_is_a_number_of_seconds(once: pgonce.Once, seconds: object) -> None:
    """Said before anything is begun; so are attempts and look."""
    with pytest.raises(pgonce.ConfigurationError, match="deadline_s"):
        once.do(lambda tx: None, deadline_s=seconds)
    with pytest.raises(pgonce.ConfigurationError, match="attempts"):
        once.do(lambda tx: None, attempts=seconds)
    with pytest.raises(pgonce.ConfigurationError, match="look"):
        once.do(lambda tx: None, look=True)


def test_a_closed_connection_stays_closed(database: str) -> None:
    """It would connect again without a word, and nobody would close that."""
    with pgonce.connect(database) as once:
        pass
    with pytest.raises(pgonce.ConfigurationError, match="was closed"):
        once.do(lambda tx: None)
