"""The guarded transaction for a program of one's own: what it sets, what it refuses, and what it raises."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psycopg
import pytest

import pgonce
from database.shop import ADD, balance
from pgonce.crashtest.boundary import CUT_AFTER, CUT_BEFORE, PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.db.session import Session


def test_a_block_is_committed_whole_or_not_at_all(once: pgonce.Once, other: psycopg.Connection) -> None:
    """E1: also where the program raises an exception of its own, which comes through as it is."""
    with once.transaction() as tx:
        assert tx.execute(ADD).rowcount == 1
        assert balance(other) == 0
    assert balance(other) == 100

    class Mine(Exception):
        pass

    def adds_and_raises() -> None:
        with once.transaction() as tx:
            tx.execute(ADD)
            raise Mine

    with pytest.raises(Mine):
        adds_and_raises()
    assert balance(other) == 100


def test_what_a_transaction_depends_on_is_set_whatever_role_and_session_say(
    database: str, other: psycopg.Connection
) -> None:
    """E4, R1: isolation, durability and the time-outs derived from the deadline; names are found as the user's are."""
    other.execute(f"alter database {other.info.dbname} set synchronous_commit = off")
    other.execute(f"alter database {other.info.dbname} set default_transaction_isolation = 'serializable'")
    other.execute(f"alter database {other.info.dbname} set default_transaction_read_only = on")
    with pgonce.connect(database) as once, once.transaction(deadline_s=20) as tx:
        names = ("transaction_isolation", "synchronous_commit", "transaction_read_only")
        found = [tx.execute("select current_setting(%s)", (name,)).fetchone() for name in names]
        assert found == [("read committed",), ("on",), ("off",)]
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            row = tx.execute("select setting::int from pg_settings where name = %s", (name,)).fetchone()
            assert row is not None
            assert 15_000 < row[0] <= 22_000
        tx.execute(ADD)


def test_a_function_that_makes_commits_careless_is_overruled(once: pgonce.Once, other: psycopg.Connection) -> None:
    """E4: what counts is what holds when COMMIT is carried out."""
    other.execute(
        "create constraint trigger note after update on account deferrable initially deferred"
        " for each row execute function note_it()"
    )
    with once.transaction() as tx:
        tx.execute("select set_config('synchronous_commit', 'off', true)")
        tx.execute(ADD)
    assert other.execute("select what from seen").fetchall() == [("on",)]


def test_an_interrupt_after_commit_says_so_and_the_next_transaction_is_possible(
    once: pgonce.Once, other: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phase 3: what comes after the answer changes nothing about it, and leaves the connection usable."""
    tidy = Session._tidy
    interrupts = [KeyboardInterrupt()]

    def interrupted(session: Session) -> None:
        if session._committed and interrupts:
            raise interrupts.pop()
        tidy(session)

    monkeypatch.setattr(Session, "_tidy", interrupted)

    def adds() -> None:
        with once.transaction() as tx:
            tx.execute(ADD)

    with pytest.raises(KeyboardInterrupt) as caught:
        adds()
    assert caught.value.__notes__ == ["the transaction was committed before this"]
    adds()
    assert balance(other) == 200


def swallow(tx: pgonce.GuardedConnection, text: str) -> None:
    """Run a statement and carry on if it fails, as a careless program does."""
    try:
        tx.execute(text)
    except psycopg.Error:
        return


def test_a_swallowed_error_fails_the_transaction_and_names_the_first_statement(
    once: pgonce.Once, other: psycopg.Connection
) -> None:
    """CASES R10, Q50: COMMIT would have answered ROLLBACK, and the driver would have said nothing."""

    def careless() -> None:
        with once.transaction() as tx:
            tx.execute(ADD)
            swallow(tx, "insert into audit_log values (1)")
            swallow(tx, "select 'only after that'")

    with pytest.raises(pgonce.EffectFailed, match=r"the first that failed was insert into audit_log.*does not exist"):
        careless()
    assert balance(other) == 0


def test_what_follows_a_swallowed_error_names_the_statement_that_failed_first(
    once: pgonce.Once, other: psycopg.Connection
) -> None:
    """R10, Q50: the server only says that the transaction is aborted; whose fault it is stands further up."""

    def carries_on() -> None:
        with once.transaction() as tx:
            with contextlib.suppress(psycopg.Error):
                tx.execute(ADD).execute("select 1 / 0")
            tx.execute(ADD)

    with pytest.raises(pgonce.EffectFailed, match=r"first statement that failed was select 1 / 0: division by zero"):
        carries_on()
    assert balance(other) == 0


@pytest.mark.parametrize(
    ("text", "sqlstate", "kind"),
    [
        ("update account set balance = -1", "23514", pgonce.Permanent),
        ("select 1 / 0", "22012", pgonce.Permanent),
        ("selec 1", "42601", pgonce.EffectFailed),
        ("do $$ begin raise sqlstate '40001'; end $$", "40001", pgonce.Retryable),
        ("do $$ begin raise sqlstate '53100'; end $$", "53100", pgonce.Retryable),
        ("do $$ begin raise sqlstate '28000'; end $$", "28000", pgonce.ConfigurationError),
        ("do $$ begin raise sqlstate '3D000'; end $$", "3D000", pgonce.ConfigurationError),
        ("do $$ begin raise sqlstate 'XX001'; end $$", "XX001", pgonce.Permanent),
    ],
)
def test_what_is_raised_says_what_its_caller_can_do(
    once: pgonce.Once, other: psycopg.Connection, text: str, sqlstate: str, kind: type[pgonce.PgonceError]
) -> None:
    """R2: by the policy, with the driver's error as the cause; the connection is good for the next transaction."""

    def fails() -> None:
        with once.transaction() as tx:
            tx.execute(ADD)
            tx.execute(text)

    with pytest.raises(kind) as caught:
        fails()
    assert (caught.value.sqlstate, caught.value.maybe_committed) == (sqlstate, False)
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert balance(other) == 0
    with once.transaction() as tx:
        tx.execute(ADD)
    assert balance(other) == 100


def test_copy_and_many_rows(once: pgonce.Once, other: psycopg.Connection) -> None:
    """Rows in bulk, in and out."""
    with once.transaction() as tx:
        tx.executemany("insert into seen values (%s)", [("a",), ("b",)])
        with tx.copy("copy seen from stdin") as copy:
            copy.write_row(("c",))
        with tx.copy("copy (select what from seen order by what) to stdout") as out:
            assert b"".join(out) == b"a\nb\nc\n"
    assert other.execute("select count(*) from seen").fetchone() == (3,)


def test_the_deadline_bounds_a_wait_for_a_lock(once: pgonce.Once, other: psycopg.Connection) -> None:
    """R1: somebody else holds the row for longer than there is time."""
    began_s = time.monotonic()
    with other.transaction():
        other.execute(ADD)

        def waits() -> None:
            with once.transaction(deadline_s=0.3) as tx:
                tx.execute(ADD)

        with pytest.raises(pgonce.Retryable):
            waits()
    assert time.monotonic() - began_s < 10
    assert balance(other) == 100


def failing(times: int, sqlstate: str) -> tuple[Callable[[pgonce.GuardedConnection], str], list[int]]:
    """Make a body that adds, and fails this often before it does not."""
    calls: list[int] = []

    def body(tx: pgonce.GuardedConnection) -> str:
        calls.append(len(calls))
        tx.execute(ADD)
        if len(calls) <= times:
            tx.execute(f"do $$ begin raise sqlstate '{sqlstate}'; end $$")
        return "done"

    return body, calls


def test_what_is_safe_is_tried_again_from_the_first_statement(once: pgonce.Once, other: psycopg.Connection) -> None:
    """R1: 40001 twice, then success: once in the account, and the last result is returned."""
    body, calls = failing(2, "40001")
    assert once.do(body) == "done"
    assert (len(calls), balance(other)) == (3, 100)


@pytest.mark.parametrize(
    ("sqlstate", "attempts", "calls_expected"), [("40001", 3, 3), ("40001", 5, 5), ("22012", 3, 1), ("53100", 3, 1)]
)
def test_attempts_are_bounded_and_only_spent_on_what_may_succeed(
    once: pgonce.Once, other: psycopg.Connection, sqlstate: str, attempts: int, calls_expected: int
) -> None:
    """R1, R2: a data error is tried once, a full disk too; nothing is applied."""
    body, calls = failing(99, sqlstate)
    with pytest.raises(pgonce.PgonceError) as caught:
        once.do(body, attempts=attempts)
    assert caught.value.sqlstate == sqlstate
    assert (len(calls), balance(other)) == (calls_expected, 0)


def test_waiting_for_a_lock_uses_up_no_attempt(once: pgonce.Once, other: psycopg.Connection) -> None:
    """R1, 55P03: tried more often than there are attempts, until the deadline."""
    calls: list[int] = []

    def body(tx: pgonce.GuardedConnection) -> None:
        calls.append(1)
        tx.execute("select from account where name = 'shop' for update nowait")

    with other.transaction():
        other.execute(ADD)
        with pytest.raises(pgonce.Retryable) as caught:
            once.do(body, attempts=2, deadline_s=0.5)
    assert caught.value.sqlstate == "55P03"
    assert len(calls) > 2


def stands(tx: pgonce.GuardedConnection) -> bool:
    """Look, under the row's lock, whether the money was added."""
    row = tx.execute("select balance = 100 from account where name = 'shop' for update").fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.parametrize(("cut", "applied"), [(CUT_BEFORE, False), (CUT_AFTER, True)], ids=["before", "after"])
def test_a_commit_whose_answer_was_lost_is_looked_up(
    database: str, other: psycopg.Connection, cut: Action, applied: bool
) -> None:
    """R3: committed is success, not committed is certain and tried again; without a way to look it is unknown."""
    cuts = [cut, cut]

    def on_boundary(boundary: Boundary) -> Action:
        return cuts.pop() if boundary.is_commit and cuts else PASS

    calls: list[int] = []

    def body(tx: pgonce.GuardedConnection) -> None:
        calls.append(1)
        tx.execute(ADD)

    with Proxy.of_dsn(database, on_boundary=on_boundary) as proxy, pgonce.connect(proxy.dsn(database)) as once:
        cuts[:] = [cut]
        once.do(body, look=stands)
        assert (len(calls), balance(other)) == (1 if applied else 2, 100)
        cuts[:] = [cut]
        with pytest.raises(pgonce.OutcomeUnknown, match="under a lock") as caught, once.transaction() as tx:
            tx.execute(ADD)
        assert caught.value.maybe_committed
        assert balance(other) == (200 if applied else 100)


def test_a_look_that_cannot_tell_in_time_leaves_it_unknown(
    database: str, other: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: neither success nor failure."""
    from pgonce.engine import doubt

    monkeypatch.setattr(doubt, "LOOK_S_MIN", 0.3)
    monkeypatch.setattr(doubt, "SLICE_S", 0.1)

    def on_boundary(boundary: Boundary) -> Action:
        return CUT_AFTER if boundary.is_commit else PASS

    def look(tx: pgonce.GuardedConnection) -> bool:
        tx.execute("select from account where name = 'other' for update")
        raise AssertionError("the row is locked")

    with (
        Proxy.of_dsn(database, on_boundary=on_boundary) as proxy,
        pgonce.connect(proxy.dsn(database)) as once,
        other.transaction(),
    ):
        other.execute("update account set balance = balance where name = 'other'")
        with pytest.raises(pgonce.OutcomeUnknown, match="could not be established in time"):
            once.do(lambda tx: tx.execute(ADD), deadline_s=1.0, look=look)
    assert balance(other) == 100


@pytest.mark.parametrize("answer", [None, (False,), 1, 0])
def test_an_answer_that_is_no_bool_leaves_it_unknown(database: str, other: psycopg.Connection, answer: object) -> None:
    """R3: a row that says no is true in Python, and a forgotten return is false; neither decides about money."""

    def on_boundary(boundary: Boundary) -> Action:
        return CUT_AFTER if boundary.is_commit else PASS

    with (
        Proxy.of_dsn(database, on_boundary=on_boundary) as proxy,
        pgonce.connect(proxy.dsn(database)) as once,
        pytest.raises(pgonce.OutcomeUnknown, match="not True or False") as caught,
    ):
        once.do(lambda tx: tx.execute(ADD), look=lambda tx: answer)
    assert (caught.value.retryable, caught.value.maybe_committed) == (False, True)
    assert balance(other) == 100


def test_a_look_that_fails_leaves_it_unknown(database: str, other: psycopg.Connection) -> None:
    """R3: its own error is the cause, not the outcome."""

    def on_boundary(boundary: Boundary) -> Action:
        return CUT_AFTER if boundary.is_commit else PASS

    def look(tx: pgonce.GuardedConnection) -> bool:
        raise LookupError("a typo")

    with (
        Proxy.of_dsn(database, on_boundary=on_boundary) as proxy,
        pgonce.connect(proxy.dsn(database)) as once,
        pytest.raises(pgonce.OutcomeUnknown, match=r"look failed.*a typo"),
    ):
        once.do(lambda tx: tx.execute(ADD), look=look)
    assert balance(other) == 100
