"""Several chunks at a time: workers begin their transactions ahead, and each is committed in input order, in its turn.

A worker has a thread and a session of its own. It takes the next chunk, stores its rows in an open transaction, and
holds that until every chunk before it is committed. Then the run itself, in the thread that called it, finishes the
transaction: the user's SQL, the position, COMMIT. Whatever goes wrong ahead is rolled back and forgotten, and the chunk
is settled in its turn as if there were no workers; so every result is the same with any number of them.

A transaction that was begun ahead may hold what an earlier chunk needs, or another job. Its worker looks whether
anybody waits for it but later chunks, and rolls back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from types import TracebackType

from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.session import Session
from pgonce.db.transaction import Transaction
from pgonce.engine.apply import Redo
from pgonce.engine.applying import Applying
from pgonce.engine.batch import Columns
from pgonce.engine.bookkeeping import INTERRUPTED, Clerk
from pgonce.engine.fast import Guess
from pgonce.errors import Interrupted, PgonceError, Unreachable
from pgonce.model.chunk import Chunk
from pgonce.model.deadline import Deadline

# How often a worker that waits for its turn looks whether anybody waits for it. A turn comes sooner, mostly.
LOOK_S = 0.02

# A chunk that waits longer for its turn than this part of its time lets its locks go, and is begun again in its turn.
WAITING_PART_MAX = 0.25

# How long a worker tries to connect, and for how long it leaves chunks to their turn when it could not: the server may
# have no connection left for it.
CONNECT_S_MAX = 2.0
REST_S = 30.0

# A worker that was told to stop ends at once; one that is just connecting, when that has failed.
STOP_S_MAX = 5.0


class _LetGo(Exception):
    """A transaction that was begun ahead is rolled back."""


@dataclass(slots=True, kw_only=True, eq=False)
class Ahead:
    """A chunk that a worker has begun: in its turn, a context in which its transaction is finished and committed."""

    applying: Applying
    session: Session
    deadline: Deadline
    seconds: float = 0.0
    """How long it took to store its rows."""
    error: BaseException | None = None
    """What ended the worker, if it was nothing that a chunk may meet."""
    transaction: Transaction | None = None
    """The open transaction; None if the chunk has to be settled from the beginning."""
    ready: threading.Event = field(default_factory=threading.Event)
    taken: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    has_begun: bool = False
    """Whether there was a connection for it and BEGIN was answered."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def begin(self, clock: Callable[[], float]) -> bool:
        """Store the rows in a transaction that stays open; where that fails, there is none.

        Returns whether the session could be connected.
        """
        began_s = clock()
        try:
            self.session.connect(self.deadline.at_most(Deadline.after(CONNECT_S_MAX, clock)))
            with contextlib.ExitStack() as stack:
                transaction = stack.enter_context(self.session.transaction(self.deadline))
                self.has_begun = True
                self.applying.store(transaction)
                self._stack, self.transaction = stack.pop_all(), transaction
        except Unreachable:
            return False
        except (DatabaseFailure, CommitInDoubt, Redo, PgonceError):
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised when the turn has come
            self.error = error
        finally:
            self.seconds = clock() - began_s
            self.ready.set()
        return True

    def let_go(self) -> None:
        """Roll the transaction back. Safe to re-run: yes."""
        if self.transaction is not None:
            self.transaction = None
            with contextlib.suppress(_LetGo), self._stack:
                raise _LetGo

    def __enter__(self) -> Transaction:
        assert self.transaction is not None
        return self.transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.transaction = None
        return bool(self._stack.__exit__(kind, error, trace))


class _Ended(Exception):
    """There are no more chunks; the cause is what the input ended with, none if that was its end."""


class Workers:
    """Workers of one start: while the context lasts, they begin chunks ahead.

    ``begin`` makes of a chunk what a worker begins; each worker has a guess of its own.
    """

    def __init__(
        self,
        clerk: Clerk,
        parts: Iterator[Chunk | Columns],
        begin: Callable[[Chunk | Columns, Guess], Applying],
        *,
        guess: Guess,
        count: int,
        chunk_s: float,
        interrupted: Callable[[], bool],
    ) -> None:
        self._clerk, self._parts, self._begin, self._chunk_s = clerk, parts, begin, chunk_s
        self._interrupted = interrupted
        self._order: SimpleQueue[Ahead | _Ended] = SimpleQueue()
        self._in_flight: list[Ahead] = []
        self._taking, self._stopped, self._is_ended = threading.Lock(), threading.Event(), False
        self._wants_connection = threading.Event()  # set while the chunk in turn may have none, behind a full pooler
        self._sessions = [clerk.session.another(sleep=self._sleep) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._work, args=(session, replace(guess)), name="pgonce-worker", daemon=True)
            for session in self._sessions
        ]

    def __enter__(self) -> Workers:
        with contextlib.ExitStack() as stack:
            stack.push(self.__exit__)
            for thread in self._threads:
                thread.start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers; what they have begun is rolled back."""
        self._stopped.set()
        for ahead in list(self._in_flight):
            ahead.done.set()
        for session in self._sessions:
            session.abort()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_S_MAX)

    def in_turn(self) -> Iterator[Ahead]:
        """Yield the chunks in input order, each when the one before it has been settled.

        Raises what the input raised, or what a worker ended with, where that chunk would have come; Interrupted.
        """
        while not isinstance(ahead := self._order.get(), _Ended):
            while not ahead.ready.wait(LOOK_S):
                self._stop_if_asked()
                if not ahead.has_begun:
                    self._wants_connection.set()
            with ahead.lock:
                ahead.taken.set()
            if ahead.error is not None:
                raise ahead.error
            if ahead.transaction is None:
                self._wants_connection.set()
            yield ahead
            self._wants_connection.clear()
            self._in_flight.remove(ahead)
            ahead.done.set()
            del ahead
        if ahead.__cause__ is not None:
            raise ahead.__cause__

    def _work(self, session: Session, guess: Guess) -> None:
        rests_until = Deadline.after(0.0, self._clerk.clock)
        try:
            while (ahead := self._next(session, guess)) is not None:
                if not rests_until.passed:
                    ahead.ready.set()
                elif not ahead.begin(self._clerk.clock):
                    rests_until = Deadline.after(REST_S, self._clerk.clock)
                self._hold(ahead)
                ahead.done.wait()
                del ahead  # its rows are not kept while the next ones are read
        finally:
            session.close()

    def _next(self, session: Session, guess: Guess) -> Ahead | None:
        """Take the next chunk; None if there is none, which is noted in the place where it would have come."""
        with self._taking:
            if self._is_ended or self._stopped.is_set():
                return None
            ended = _Ended()
            try:
                applying = self._begin(next(self._parts), guess)
            except StopIteration:
                self._is_ended = True
            except BaseException as error:  # noqa: BLE001 - it is raised where the chunk is asked for
                self._is_ended, ended.__cause__ = True, error
            if self._is_ended:
                self._order.put(ended)
                return None
            ahead = Ahead(applying=applying, session=session, deadline=self._clerk.deadline(self._chunk_s))
            self._in_flight.append(ahead)
            if self._stopped.is_set():  # while the chunk was read; nobody would end the wait for its turn
                return None
            self._order.put(ahead)
            return ahead

    def _hold(self, ahead: Ahead) -> None:
        """Hold a transaction until its turn has come; let it go where others want what it has, or it takes long."""
        until = Deadline.after(self._chunk_s * WAITING_PART_MAX, self._clerk.clock)
        while ahead.transaction is not None and not ahead.taken.wait(LOOK_S):
            with ahead.lock:
                if not ahead.taken.is_set() and (
                    self._stopped.is_set()
                    or until.passed
                    or self._takes_a_connection(ahead)
                    or ahead.transaction.holds_up(but=self._later(ahead))
                ):
                    ahead.let_go()

    def _takes_a_connection(self, ahead: Ahead) -> bool:
        """Say whether a later chunk holds one of a pooler's connections while the chunk in turn may wait for one."""
        is_pooled = ahead.session.backend_pid is None
        return is_pooled and self._wants_connection.is_set() and self._in_flight[0] is not ahead

    def _later(self, ahead: Ahead) -> list[int]:
        """Return the backends that are at work for later chunks: those may wait. A pooler's are nobody's for long."""
        in_flight = list(self._in_flight)
        pids = [other.session.backend_pid for other in in_flight[in_flight.index(ahead) + 1 :]]
        return [pid for pid in pids if pid is not None]

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Interrupted("the worker was told to stop")
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._interrupted():
            raise Interrupted(INTERRUPTED)
