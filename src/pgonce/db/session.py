"""One session of pgonce's own: guarded transactions on a connection that is made again where that is needed.

Two facts about the server and the driver shape this module. COMMIT of a transaction in which a statement failed is
answered with the tag ROLLBACK, and the driver says nothing; so the state is looked at before COMMIT and the tag after
it. And a COMMIT that was sent but got no definite answer is neither success nor failure; it is raised as
``CommitInDoubt`` and resolved by a row (see ``engine/position.py``), never by guessing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus

from pgonce.db import failure
from pgonce.db.bounds import bound
from pgonce.db.connect import Target, connect, has_hung_up
from pgonce.db.deferred import Pending, deferred_signals
from pgonce.db.failure import CommitInDoubt, DatabaseFailure, failure_of, tells_degraded
from pgonce.db.statements import statement
from pgonce.db.transaction import Transaction
from pgonce.db.watchdog import Watchdog
from pgonce.errors import ConfigurationError, Interrupted, Unreachable
from pgonce.model.backoff import Backoff
from pgonce.model.deadline import Deadline
from pgonce.model.policy import Phase, Verdict

# A server that is just starting answers within the first few tries.
TRIES_BEFORE_TELLING = 6

DEGRADED = (
    "a COMMIT stands on this server alone: the wait for its synchronous standby was cancelled, or ended with its "
    "connection. Until a standby has it, a failover would lose it; look after the standbys. This is said once"
)


class Session:
    """One connection to the primary, made when it is first needed and made again after it was lost.

    ``random`` gives numbers in [0, 1) for the backoff, ``sleep`` waits; both are handed in so that tests decide them.
    ``tell`` is told when connecting takes long, and once when a COMMIT stands on the primary alone.
    """

    def __init__(
        self,
        target: Target,
        *,
        schema: str,
        application: str,
        random: Callable[[], float],
        sleep: Callable[[float], None],
        backoff: Backoff,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.target = target
        self.schema = schema
        self._application = application
        self._random = random
        self._sleep = sleep
        self._backoff = backoff
        self._tell = tell
        self._connection: psycopg.Connection | None = None
        self._watchdog = Watchdog()
        self._busy = threading.Lock()
        self._is_tidy = True
        self._committed = False
        self._process = os.getpid()
        self._has_told_for_another = False
        self._is_aborted = False
        self.idles = False
        """Whether this session idles for long: the server is not to end it for that."""
        self.before_begin: Callable[[], None] | None = None
        """Called before a transaction begins on this session."""
        self._until = Deadline.after(0.0, time.monotonic)
        self._parents: list[psycopg.Connection | None] = []
        self.backend_pid: int | None = None
        self.backend_start: object = None
        self.durability_degraded = False
        """Whether a COMMIT, answered or not, went on without the synchronous standby that it waited for."""

    def another(self, *, sleep: Callable[[float], None]) -> Session:
        """Return a session of its own on the same database, which waits in this way and has this one tell."""
        return Session(
            self.target,
            schema=self.schema,
            application=self._application,
            random=self._random,
            sleep=sleep,
            backoff=self._backoff,
            tell=self._tell_for_another,
        )

    def _tell_for_another(self, text: str) -> None:
        """Tell what another session has to say: each kind of it once, however many sessions there are."""
        if text == DEGRADED:
            if not self.durability_degraded:
                self.durability_degraded = True
                self._tell(text)
        elif not self._has_told_for_another:
            self._has_told_for_another = True
            self._tell(f"one more connection, for a worker: {text}. The run goes on without it meanwhile")

    def abort(self) -> None:
        """End what another thread waits for on this session, now and later, by cutting its connection.

        A forked child ends nothing: the connection is its parent's. Safe to re-run: yes.
        """
        if os.getpid() == self._process:
            self._is_aborted = True
            self._watchdog.cut_now()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._watchdog.close()
        self._drop()

    def disconnect(self) -> None:
        """Close the connection, and make another one when it is needed. Safe to re-run: yes."""
        self._drop()

    def _drop(self) -> None:  # the next transaction makes a new connection
        if os.getpid() != self._process:
            self._forget()
        if self._connection is not None:
            self._watchdog.release()
            self._connection.close()
            self._connection = None

    def connect(self, deadline: Deadline) -> psycopg.Connection:
        """Return the connection, making it first if there is none; failing to connect uses up no attempt.

        Raises Unreachable with the last reason once the deadline has passed.
        """
        tries = 0
        while self._connection is None:
            if self._is_aborted:
                raise Interrupted("the session was told to end")
            try:
                made = connect(self.target, application=self._application, within_s=deadline.left_s())
                with self._watchdog.watching(made.fileno(), deadline.left_s()):
                    self._take_into_use(made)
            except psycopg.OperationalError as error:
                tries += 1
                if tries == TRIES_BEFORE_TELLING:
                    reason = " ".join(str(error).split())
                    self._tell(f"cannot connect yet ({reason}); trying for up to {deadline.left_s():.0f} s more")
                if deadline.passed:
                    raise Unreachable(
                        f"cannot connect to the {self.target.label}: {' '.join(str(error).split())}. Nothing was "
                        "applied by this attempt; start the server or correct the address, then run again."
                    ) from error
                self._sleep(min(self._backoff.delay_s(tries, self._random), deadline.left_s()))
        return self._connection

    def _take_into_use(self, connection: psycopg.Connection) -> None:
        """Note which backend serves a new connection; behind a pooler none is ours, and nothing is noted."""
        # In binary, so that the role's style of dates does not matter: no setting of ours is in force here.
        found = connection.execute(statement("session_identity", self.schema), binary=True).fetchone()
        direct = found is not None and found[0] == connection.info.backend_pid
        self.backend_pid, self.backend_start = (found[0], found[1]) if found and direct else (None, None)
        self._let_idle(connection)
        connection.add_notice_handler(self._hear)
        self._connection = connection

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        """Look at a notice; what is raised here the driver keeps to itself."""
        if not self.durability_degraded and tells_degraded(notice):
            self.durability_degraded = True
            self._tell(DEGRADED)

    @contextmanager
    def transaction(self, deadline: Deadline, *, commit: bool = True, snapshot: bool = False) -> Iterator[Transaction]:
        """Run the body in one READ COMMITTED transaction and commit it, or roll it back.

        ``commit=False`` rolls back at the end whatever happens: for reading, and for rehearsals. ``snapshot`` makes it
        REPEATABLE READ, so that all its statements see one state: for checks.
        Raises DatabaseFailure when nothing was applied, CommitInDoubt when that cannot be told. This connection is
        closed where the next try needs another one.
        """
        if not self._busy.acquire(blocking=False):
            raise ConfigurationError(
                "a transaction is open on this connection already, and a second one would be committed with it. Do not "
                "nest transactions; give each thread and each process a connection of its own. Nothing was sent."
            )
        self._committed, self._until = False, deadline
        try:
            if self.before_begin is not None:
                self.before_begin()
            connection = self._idle_connection(deadline)
            with self._watchdog.watching(connection.fileno(), deadline.left_s()):
                if self._is_aborted:  # from here on the watchdog would cut it
                    raise Interrupted("the session was told to end")
                yield from self._transaction(connection, deadline, commit=commit, snapshot=snapshot)
            self._tidy()
        except BaseException as error:
            if self._committed:
                error.add_note("the transaction was committed before this")
            if isinstance(error, Exception):
                self._tidy()  # what comes next may come on another session, and wait for a lock that was left here
            raise
        finally:
            self._busy.release()

    def _idle_connection(self, deadline: Deadline) -> psycopg.Connection:
        """Return the connection, a new one if this process is a fork or if something is still open on it."""
        if os.getpid() != self._process:
            self._forget()
        self._tidy()
        connection = self._connection
        if connection is not None and connection.info.transaction_status is not TransactionStatus.IDLE:
            self._drop()
        return self.connect(deadline)

    def extend(self, transaction: Transaction, deadline: Deadline) -> None:
        """Give the open transaction of this session until another deadline.

        Raises what the statement raises. Safe to re-run: yes.
        """
        self._until = deadline
        self._watchdog.extend(deadline.left_s())
        bound(transaction, deadline, self.target.label)

    def is_alive(self, within_s: float) -> bool:
        """Look whether the connection, on which nothing is open, is there; with some seconds given, ask the server.

        One that is not is closed. Safe to re-run: yes.
        """
        connection = self._connection
        if connection is None:
            return False
        try:
            if not has_hung_up(connection):
                if within_s > 0:
                    with self._watchdog.watching(connection.fileno(), within_s):
                        self._let_idle(connection)
                return True
        except psycopg.Error:
            pass
        self._drop()
        return False

    def _let_idle(self, connection: psycopg.Connection) -> None:
        if self.idles and self.backend_pid is not None:
            connection.execute("set idle_session_timeout = 0")

    def _forget(self) -> None:
        """Leave the connection to the parent process: closing it here would end it there."""
        self._parents.append(self._connection)
        self._connection, self._watchdog, self._process = None, Watchdog(), os.getpid()

    def _tidy(self) -> None:
        """Leave nothing of the user's on the session, if there is one: behind a pooler it might be somebody else's."""
        connection = self._connection
        if self._is_tidy or connection is None or os.getpid() != self._process:
            return
        self._is_tidy = True
        if self.backend_pid is None or connection.info.transaction_status is not TransactionStatus.IDLE:
            return
        try:
            with self._watchdog.watching(connection.fileno(), 0.0):
                connection.execute("discard all")
                self._let_idle(connection)
        except psycopg.Error:
            self._drop()
        except BaseException:
            self._drop()
            raise

    def _transaction(
        self, connection: psycopg.Connection, deadline: Deadline, *, commit: bool, snapshot: bool
    ) -> Iterator[Transaction]:
        phase = Phase.CONNECTING
        transaction: Transaction | None = None
        try:
            connection.execute(statement("begin_snapshot" if snapshot else "begin", self.schema))
            phase = Phase.STATEMENT
            transaction = Transaction(connection, self.schema)
            bound(transaction, deadline, self.target.label)
            yield transaction
            if os.getpid() != self._process:
                self._forget()  # a forked child that leaves the block does nothing: the transaction is its parent's
                return
            if commit:
                transaction.refuse_if_failed()
                transaction.before_commit()
                self._commit(connection)
        except psycopg.Error as error:
            self._abandon()
            if transaction is not None and transaction.foreign is error:
                raise
            raise self._ended(self._failure(error, phase)) from error
        except DatabaseFailure as outcome:
            self._abandon()
            self._ended(outcome)
            raise
        except BaseException:
            self._abandon()
            raise
        finally:
            self._is_tidy = self._is_tidy and (transaction is None or not transaction.runs_user_sql)
        if not commit:
            self._abandon()

    def _failure(self, error: psycopg.Error, phase: Phase) -> DatabaseFailure:
        alive = self._connection is not None
        if self._watchdog.cut:
            error.add_note("(pgonce ended the wait: the deadline had passed and the server did not answer)")
        return failure_of(error, phase, schema=self.schema, alive=alive, timed_out=self._until.passed)

    def _ended(self, outcome: DatabaseFailure) -> DatabaseFailure | CommitInDoubt:
        """Close the connection if the next try needs another one, and say how the transaction ended."""
        if outcome.decision.fresh_connection:
            self._drop()
        if outcome.decision.verdict is Verdict.AMBIGUOUS:
            return CommitInDoubt(f"the server does not say whether it committed: {outcome}")
        return outcome

    def _commit(self, connection: psycopg.Connection) -> None:
        """Send COMMIT and look at what it answers; after anything but COMMIT the connection is not used again."""
        tag, pending = None, Pending()
        try:
            with deferred_signals() as pending:
                tag = self._answer_to_commit(connection)
                self._committed = tag == "COMMIT"
            pending.deliver()
        except CommitInDoubt as doubt:
            self._drop()
            doubt.pending = pending
            raise
        except DatabaseFailure:
            self._drop()
            pending.deliver()
            raise
        except BaseException:
            self._drop()
            raise
        if tag != "COMMIT":
            self._drop()
            raise failure.rolled_back(tag or "no tag")

    def _answer_to_commit(self, connection: psycopg.Connection) -> str | None:
        try:
            return connection.execute("commit").statusmessage
        except psycopg.Error as error:
            outcome = self._failure(error, Phase.COMMIT)
            if outcome.decision.verdict is Verdict.AMBIGUOUS:
                raise CommitInDoubt(f"COMMIT was sent and its outcome is not known: {outcome}") from error
            raise outcome from error
        except BaseException as error:
            raise CommitInDoubt("COMMIT was interrupted before its answer came") from error

    def _abandon(self) -> None:
        """Roll back; a connection that cannot even do that is closed, so that nobody meets it again."""
        if os.getpid() != self._process:
            self._forget()
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.info.transaction_status is TransactionStatus.IDLE:
                return
            connection.execute("rollback")
        except psycopg.Error:
            self._drop()
            return
        except BaseException:
            self._drop()
            raise
        if connection.broken:
            self._drop()


def default_random() -> float:
    """Return a number in [0, 1) that no two processes share."""
    return int.from_bytes(os.urandom(7), "big") / (1 << 56)
