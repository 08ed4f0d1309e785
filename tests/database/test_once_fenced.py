"""The fence of the guarded transaction: nothing in its block can end it, leave it, or be swallowed in it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg.rows import dict_row

import pgonce
from database.shop import ADD, balance
from pgonce.crashtest.boundary import CUT_AFTER, CUT_BEFORE, PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.db.guarded import GuardedCursor


@pytest.mark.parametrize(
    "text",
    [
        "commit",
        "BEGIN",
        "rollback",
        "end",
        "savepoint s",
        "start transaction",
        "prepare transaction 'x'",
        "set statement_timeout = 0",
        "set session characteristics as transaction isolation level serializable",
        "SET SESSION AUTHORIZATION DEFAULT",
        "reset all",
        "discard all",
        "update account set balance = 7; commit",
        "commit; update account set balance = 7",
        "",
    ],
)
def test_what_would_end_or_outlive_the_transaction_is_refused_and_not_sent(
    once: pgonce.Once, other: psycopg.Connection, text: str
) -> None:
    """FAILURES, "User SQL": refused before it is sent; who swallows that has not done what was asked, so it fails."""

    def swallows(call: Callable[[pgonce.GuardedConnection], object]) -> None:
        with once.transaction() as tx:
            tx.execute(ADD)
            with pytest.raises(pgonce.ConfigurationError):
                call(tx)
            assert balance(other) == 0

    def copies(tx: pgonce.GuardedConnection) -> None:
        with tx.copy(text):
            pass

    calls = [lambda tx: tx.execute(text), lambda tx: tx.executemany(text, [()]), lambda tx: tx.cursor().execute(text)]
    for call in (*calls, copies):
        with pytest.raises(pgonce.EffectFailed, match="the error was ignored; the first that failed was"):
            swallows(call)
    assert balance(other) == 0


@pytest.mark.parametrize("name", ["commit", "rollback", "transaction", "close"])
def test_a_method_that_would_end_the_transaction_says_what_to_do_instead_and_fails_it(
    once: pgonce.Once, other: psycopg.Connection, name: str
) -> None:
    """R10: whoever swallows the refusal of rollback() must not find everything committed."""

    def takes_it_back() -> None:
        with once.transaction() as tx:
            tx.execute(ADD)
            with pytest.raises(pgonce.ConfigurationError, match=rf"{name}\(\) cannot be called"):
                getattr(tx, name)()

    with pytest.raises(pgonce.EffectFailed, match=rf"{name}\(\)"):
        takes_it_back()
    assert balance(other) == 0


def test_a_copy_of_several_statements_is_refused(once: pgonce.Once, other: psycopg.Connection) -> None:
    """FAILURES 2.4: a COMMIT between them would be carried out by the server without a word."""
    text = f"{ADD}; commit; copy account to stdout"
    calls: list[int] = []

    def body(tx: pgonce.GuardedConnection) -> None:
        calls.append(1)
        with tx.copy(text) as out:
            list(out.rows())

    with pytest.raises(pgonce.ConfigurationError, match="holds 3 statements"):
        once.do(body)
    assert (len(calls), balance(other)) == (1, 0)


def test_a_statement_of_another_thread_that_comes_too_late_is_refused(
    once: pgonce.Once, other: psycopg.Connection
) -> None:
    """FAILURES 2.1: on a connection without a transaction it would be committed by itself."""
    rolled_back = threading.Event()
    outcomes: list[BaseException | None] = []

    def late(tx: pgonce.GuardedConnection) -> None:
        rolled_back.wait(30)
        try:
            tx.execute(ADD)
            outcomes.append(None)
        except pgonce.PgonceError as error:
            outcomes.append(error)

    def begins_and_raises() -> None:
        with once.transaction() as tx:
            threads.append(threading.Thread(target=late, args=(tx,)))
            threads[0].start()
            raise KeyError

    threads: list[threading.Thread] = []
    with pytest.raises(KeyError):
        begins_and_raises()
    rolled_back.set()
    threads[0].join(30)
    assert isinstance(outcomes[0], pgonce.ConfigurationError)
    assert balance(other) == 0


def test_an_error_of_another_connection_is_the_programs_own(once: pgonce.Once, other: psycopg.Connection) -> None:
    """R2: what the policy says of a SQLSTATE is about this transaction; anything else goes through as it was raised."""
    for code in ("40003", "28000", "22012"):

        def asks_elsewhere(code: str = code) -> None:
            with once.transaction() as tx, psycopg.connect(other.info.dsn, autocommit=True) as elsewhere:
                tx.execute(ADD)
                elsewhere.execute(f"do $$ begin raise sqlstate '{code}'; end $$")

        with pytest.raises(psycopg.Error) as caught:
            asks_elsewhere()
        assert caught.value.sqlstate == code
    assert balance(other) == 0


@pytest.mark.parametrize("text", ["call commits()", "do $$ begin commit; end $$"])
def test_a_procedure_that_commits_fails_and_nothing_is_applied(
    once: pgonce.Once, other: psycopg.Connection, text: str
) -> None:
    """2D000: the server refuses it inside a transaction block."""

    def calls() -> None:
        with once.transaction() as tx:
            tx.execute(ADD)
            tx.execute(text)

    with pytest.raises(pgonce.EffectFailed) as caught:
        calls()
    assert caught.value.sqlstate == "2D000"
    assert balance(other) == 0


def test_a_cursor_cannot_end_the_transaction_either(once: pgonce.Once, other: psycopg.Connection) -> None:
    """FAILURES 2.1: what a statement returns is guarded like the connection, and so is the way back from it."""
    cursors: list[GuardedCursor] = []

    def ends_it() -> None:
        with once.transaction() as tx:
            cursor = tx.execute(ADD)
            cursors.append(cursor)
            for end in (
                lambda: cursor.execute("commit"),
                lambda: cursor.executemany("rollback", [()]),
                tx.cursor().connection.commit,
            ):
                with pytest.raises(pgonce.ConfigurationError):
                    end()

    with pytest.raises(pgonce.EffectFailed, match="the first that failed was commit"):
        ends_it()
    with pytest.raises(pgonce.ConfigurationError, match="after the end of its transaction"):
        cursors[0].execute(ADD)
    assert balance(other) == 0


def test_a_cursor_gives_rows_as_the_driver_does(once: pgonce.Once) -> None:
    """One by one, some, the rest, in a loop, or as dictionaries; it says what it returned and how many."""
    with once.transaction() as tx:
        cursor = tx.execute("select n, 'x' as x from generate_series(1, 5) as n")
        assert (cursor.rowcount, cursor.statusmessage) == (5, "SELECT 5")
        assert [column.name for column in cursor.description or ()] == ["n", "x"]
        assert (cursor.fetchone(), cursor.fetchmany(2)) == ((1, "x"), [(2, "x"), (3, "x")])
        assert (cursor.fetchall(), cursor.fetchone()) == ([(4, "x"), (5, "x")], None)
        assert list(tx.execute("values (1), (2)")) == [(1,), (2,)]
        with tx.cursor(row_factory=dict_row) as named:
            assert named.execute("select 7 as seven").fetchall() == [{"seven": 7}]
        assert tx.execute("create temporary table t (n int)").description is None


@pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER], ids=["before", "after"])
def test_every_statement_of_a_guarded_transaction_may_be_the_last_of_its_connection(
    database: str, other: psycopg.Connection, cut: Action
) -> None:
    """E1, R3: pgonce's own statements around the block among them: tried again or looked up, and applied once."""
    left = [0]

    def at_the_nth(_boundary: Boundary) -> Action:
        left[0] -= 1
        return cut if left[0] == 0 else PASS

    def look(tx: pgonce.GuardedConnection) -> bool:
        row = tx.execute("select balance from account where name = 'shop' for update").fetchone()
        assert row is not None
        return bool(row[0] == done + 100)

    done = points = 0
    with Proxy.of_dsn(database, on_boundary=at_the_nth) as proxy:
        while True:
            left[0] = points + 1
            with pgonce.connect(proxy.dsn(database)) as once:
                once.do(lambda tx: tx.execute(ADD).rowcount, look=look)
            done += 100
            assert balance(other) == done, f"point {points + 1}"
            if left[0] > 0:
                break
            points += 1
    assert points > 9
