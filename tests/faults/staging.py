"""Stage a failure for real under ``Session.transaction``, and compare what was told with what is stored.

A staged transaction updates a row that was there before and inserts one with a deferred trigger, the gate: while a test
holds the gate's advisory lock, the transaction stands inside COMMIT (``write``), or in a statement before it
(``write_and_wait``), and whatever is to happen to it there can be done.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import make_conninfo

from faults.harness import wait_until, wait_until_blocked
from pgonce.db.connect import Target
from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.session import Session, default_random
from pgonce.db.transaction import Transaction
from pgonce.model.backoff import Backoff
from pgonce.model.deadline import Deadline
from pgonce.model.policy import Verdict

# What is staged takes milliseconds; the deadline is out of the way unless it is what is staged.
DEADLINE_S = 30.0

GATE = 51

TABLES = f"""
create table place (n integer not null);
insert into place values (0);
create table ledger (id integer primary key, cents integer not null);
create function gate() returns trigger language plpgsql as
$$ begin perform pg_catalog.pg_advisory_xact_lock_shared({GATE}); return null; end $$;
create constraint trigger gate after insert on ledger deferrable initially deferred
    for each row execute function gate();
"""

Body = Callable[[Transaction], object]


def write(transaction: Transaction) -> None:
    """Do the transaction's work; COMMIT goes through the gate."""
    transaction.connection.execute("update public.place set n = n + 1")
    transaction.connection.execute("insert into public.ledger values (1, 100)")


def write_and_wait(transaction: Transaction) -> None:
    """Do the work, then stand at the gate in a statement."""
    write(transaction)
    transaction.connection.execute(f"select pg_advisory_xact_lock_shared({GATE})")


def write_then(*statements: str) -> Body:
    """Do the work, then run these statements."""

    def body(transaction: Transaction) -> None:
        write(transaction)
        for statement in statements:
            transaction.connection.execute(statement)

    return body


@dataclass(frozen=True, slots=True)
class Told:
    """What a transaction told: its verdict, the SQLSTATE, whether a try is used up, and whether its connection stays.

    ``burns`` is None for success and for doubt: the one uses none up, the other is for the resolution to say.
    """

    verdict: Verdict
    sqlstate: str | None
    burns: bool | None
    kept: bool


COMMITTED = Told(Verdict.COMMITTED, None, None, kept=True)


@dataclass(slots=True)
class Stage:
    """A session on a database with the tables, and somebody beside it who looks and interferes."""

    dsn: str
    session: Session
    said: list[str]
    last: BaseException | None = field(default=None)
    """What the last attempt raised."""

    def attempt(self, body: Body = write, *, deadline_s: float = DEADLINE_S, snapshot: bool = False) -> Told:
        """Run a body in a transaction of the session, and tell what became of it."""
        deadline = Deadline.after(deadline_s, time.monotonic)
        before = self.session.connect(deadline)
        verdict, sqlstate, burns = Verdict.COMMITTED, None, None
        self.last = None
        try:
            with self.session.transaction(deadline, snapshot=snapshot) as transaction:
                body(transaction)
        except DatabaseFailure as failure:
            self.last = failure
            verdict, sqlstate, burns = failure.decision.verdict, failure.sqlstate, failure.decision.burns_attempt
        except CommitInDoubt as doubt:
            self.last = doubt
            verdict, sqlstate = Verdict.AMBIGUOUS, getattr(doubt.__cause__, "sqlstate", None)
        return Told(verdict, sqlstate, burns, kept=self.session._connection is before)

    @contextlib.contextmanager
    def standing(self, body: Body = write, *, deadline_s: float = DEADLINE_S) -> Iterator[tuple[Future[Told], int]]:
        """Start an attempt that comes to stand at the shut gate; give its future and its backend.

        The gate opens when the block is left, if the server still holds it then.
        """
        with ThreadPoolExecutor(1) as pool, beside(self.dsn) as holder, beside(self.dsn) as watcher:
            holder.execute(f"select pg_advisory_lock({GATE})")
            try:
                future = pool.submit(self.attempt, body, deadline_s=deadline_s)
                yield future, wait_until_blocked(watcher)
            finally:
                holder.close()

    def sql(self, text: str, *parameters: object) -> list[tuple[object, ...]]:
        """Run a statement beside the session."""
        with beside(self.dsn) as connection:
            cursor = connection.execute(text, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def backend(self) -> int:
        """Return the pid of the session's backend."""
        pid = self.session.backend_pid
        assert pid is not None
        return pid

    def wait_gone(self, pid: int) -> None:
        """Wait until a backend has ended."""
        wait_until(
            lambda: not self.sql("select pid from pg_stat_activity where pid = %s", pid), f"the end of backend {pid}"
        )

    def is_applied(self) -> bool:
        """Say whether the staged transaction took place: read as the engine does, under the lock of the row it updated.

        Both of its writes took place or neither did, whatever the test is about.
        """
        with beside(self.dsn) as connection, connection.transaction():
            [(count,)] = connection.execute("select n from place for no key update").fetchall()
            rows = connection.execute("select id, cents from ledger").fetchall()
        assert rows == [(1, 100)] * count
        return bool(count)

    def heals(self) -> bool:
        """Say whether the same session does the work when nothing is in its way any more, once."""
        return self.attempt().verdict is Verdict.COMMITTED and self.is_applied()


@contextlib.contextmanager
def beside(dsn: str) -> Iterator[psycopg.Connection]:
    """Open a connection that waits for no standby, and for nothing for ever, and commits each statement."""
    options = "-c synchronous_commit=local -c statement_timeout=30s"
    with contextlib.closing(psycopg.connect(make_conninfo(dsn, options=options), autocommit=True)) as connection:
        yield connection


def session_on(dsn: str, said: list[str]) -> Session:
    """Make a session as the commands do; what it says goes into the list."""
    return Session(
        Target(conninfo=dsn, named_by="a test"),
        schema="pgonce",
        application="pgonce/test",
        random=default_random,
        sleep=time.sleep,
        backoff=Backoff(),
        tell=said.append,
    )


@contextlib.contextmanager
def stage_on(dsn: str, *, through: str | None = None, prepared: bool = False) -> Iterator[Stage]:
    """Make the tables in a database, unless they are there, and a session on it, through another dsn if given."""
    if not prepared:
        with beside(dsn) as connection:
            connection.execute(TABLES)
    said: list[str] = []
    session = session_on(through or dsn, said)
    with contextlib.closing(session):
        yield Stage(dsn, session, said)


@contextlib.contextmanager
def crash_within(dsn: str) -> Iterator[None]:
    """Wait, when the block is left, until the server has ended every session for a crash in it, and recovered."""
    with beside(dsn) as bystander:
        yield

        def is_lost() -> bool:
            try:
                bystander.execute("select 1")
            except psycopg.OperationalError:
                return True
            return False

        wait_until(is_lost, "the server to notice the crash")
    wait_accepts(dsn)


def wait_accepts(dsn: str) -> None:
    """Wait until the server takes connections."""

    def accepts() -> bool:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(accepts, "the server to take connections")
