"""Several chunks at a time: workers begin their transactions ahead, and each is committed in input order, in its turn.

A worker has a thread and a session of its own. It takes the next chunk, stores its rows in an open transaction, and
holds that until every chunk before it is committed. Then the run itself, in the thread that called it, finishes the
transaction: the user's SQL, the position, COMMIT. Whatever goes wrong ahead is rolled back and forgotten, and the chunk
is settled in its turn as if there were no workers; so every result is the same with any number of them.

A transaction that was begun ahead may hold what an earlier chunk needs, or another job. Its worker looks whether
anybody waits for it but later chunks, and rolls back.

Transactions begin in input order, so that `now()` never goes back from one chunk to the next. Where a chunk is begun
anew in its turn, what was begun behind it is rolled back: that would be older, and may hold what is needed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from types import TracebackType

from pgonce.db.failure import CommitInDoubt, DatabaseFailure
from pgonce.db.keeping import Keeper
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

# How often a worker that waits for its turn looks whether anybody waits for it, and the run whether it is to stop. A
# turn comes sooner, mostly.
LOOK_S = 0.02

# A chunk that waits longer for its turn than this part of its time lets its locks go, and is begun again in its turn.
WAITING_PART_MAX = 0.25

# How long a worker tries to connect, and for how long it leaves chunks to their turn when it could not: the server may
# have no connection left for it.
CONNECT_S_MAX = 2.0
REST_S = 30.0

# Workers that were told to stop end at once; who is just connecting, when it is connected or that has failed.
STOP_S_MAX = 5.0


class _LetGo(Exception):
    """A transaction that was begun ahead is rolled back."""


@dataclass(slots=True, kw_only=True, eq=False)
class Ahead:
    """A chunk that a worker has begun: in its turn, a context in which its transaction is finished and committed.

    What is said of it here changes under the workers' lock, the transaction itself under ``lock``.
    """

    applying: Applying
    session: Session
    deadline: Deadline
    seconds: float = 0.0
    """How long it took to store its rows."""
    error: BaseException | None = None
    """What ended the worker, if it was nothing that a chunk may meet."""
    transaction: Transaction | None = None
    """The open transaction; None if the chunk has to be settled from the beginning."""
    is_sent: bool = False
    """BEGIN may have been sent."""
    is_begun: bool = False
    """A transaction is open, or is just being ended; the next chunk may begin."""
    is_ready: bool = False
    """The worker has done what it does ahead."""
    is_taken: bool = False
    """Its turn has come: its transaction is the run's to finish."""
    has_to_go: bool = False
    """An earlier chunk is begun anew: the transaction has to be rolled back."""
    has_to_close: bool = False
    """The run itself needs a connection, and there may be no other."""
    is_done: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def begin(self, clock: Callable[[], float], begun: Callable[[], None] = lambda: None) -> None:
        """Store the rows in a transaction that stays open; where that fails, there is none.

        ``begun`` is called as soon as the transaction is open.
        """
        began_s = clock()
        try:
            with contextlib.ExitStack() as stack:
                transaction = stack.enter_context(self.session.transaction(self.deadline))
                begun()
                self.applying.store(transaction)
                self._stack, self.transaction = stack.pop_all(), transaction
        except (DatabaseFailure, CommitInDoubt, Redo, PgonceError):
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised when the turn has come
            self.error = error
        finally:
            self.seconds = clock() - began_s

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
        self._in_flight: list[Ahead] = []  # in input order; the first one's turn has come, or comes next
        self._taking, self._changed = threading.Lock(), threading.Condition()
        self._stopped, self._is_ended, self._resting = threading.Event(), False, 0
        self._process = os.getpid()
        self._keeper = Keeper(clerk.session)
        self._sessions = [clerk.session.another(sleep=self._sleep) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._work, args=(session, replace(guess)), name="pgonce-worker", daemon=True)
            for session in self._sessions
        ]

    def __enter__(self) -> Workers:
        with contextlib.ExitStack() as stack:
            stack.push(self.__exit__)
            self._clerk.session.before_begin = self._make_way
            self._keeper.look()
            for thread in self._threads:
                thread.start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers; what they have begun is rolled back."""
        if os.getpid() != self._process:  # a forked child: the threads and their connections are its parent's
            return
        self._clerk.session.before_begin = None
        self._clerk.session.idles = False
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
        for session in self._sessions:
            session.abort()
        until_s = time.monotonic() + STOP_S_MAX
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))

    def in_turn(self) -> Iterator[Ahead]:
        """Yield the chunks in input order, each when the one before it has been settled.

        Raises what the input raised, or what a worker ended with, where that chunk would have come; Interrupted.
        """
        while not isinstance(ahead := self._coming(), _Ended):
            while not self._waits_for(lambda: ahead.is_ready):
                self._look_round()
            with ahead.lock, self._changed:
                ahead.is_taken = True
                self._changed.notify_all()
            if ahead.has_to_go:
                ahead.let_go()
            if ahead.error is not None:
                raise ahead.error
            self._keeper.look()
            yield ahead
            with self._changed:
                self._in_flight.remove(ahead)
                ahead.is_done = True
                self._changed.notify_all()
            del ahead
        if ahead.__cause__ is not None:
            raise ahead.__cause__

    def _coming(self) -> Ahead | _Ended:
        while True:
            with contextlib.suppress(Empty):
                return self._order.get(timeout=LOOK_S)
            self._look_round()

    def _look_round(self) -> None:
        """While the run waits: end if that was asked, and keep its own session."""
        if self._interrupted():
            raise Interrupted(INTERRUPTED)
        self._keeper.look()

    def _make_way(self) -> None:
        """Have later chunks let go of what they have begun, because the run begins a transaction of its own now."""
        with self._changed:
            for ahead in self._in_flight:
                ahead.is_begun, ahead.has_to_go = False, ahead.is_sent
                ahead.has_to_close = not self._clerk.session.is_connected
            self._changed.notify_all()

    def _waits_for(self, condition: Callable[[], bool]) -> bool:
        """Wait a moment for what somebody else does to a chunk; say whether it was done."""
        with self._changed:
            return self._changed.wait_for(condition, LOOK_S)

    def _work(self, session: Session, guess: Guess) -> None:
        rests_until = Deadline.after(0.0, self._clerk.clock)
        try:
            while (ahead := self._next(session, guess, rests_until)) is not None:
                if rests_until.passed and not self._begin_ahead(ahead):
                    rests_until = Deadline.after(REST_S, self._clerk.clock)
                with self._changed:
                    ahead.is_ready = True
                    self._changed.notify_all()
                self._hold(ahead)
                with self._changed:
                    self._changed.wait_for(lambda: ahead.is_done or self._stopped.is_set())
                del ahead  # its rows are not kept while the next ones are read
        finally:
            session.close()

    def _begin_ahead(self, ahead: Ahead) -> bool:
        """Begin a chunk when the one before it has begun; say whether the session could be connected."""
        try:
            ahead.session.connect(ahead.deadline.at_most(Deadline.after(CONNECT_S_MAX, self._clerk.clock)))
        except Unreachable:
            return False
        except PgonceError:
            return True
        except BaseException as error:  # noqa: BLE001 - it is raised when the turn has come
            ahead.error = error
            return True
        with self._changed:
            self._changed.wait_for(lambda: self._stopped.is_set() or self._may_begin(ahead))
            ahead.is_sent = not self._stopped.is_set()
        if ahead.is_sent:
            ahead.begin(self._clerk.clock, lambda: self._has_begun(ahead))
        return True

    def _may_begin(self, ahead: Ahead) -> bool:
        place = self._in_flight.index(ahead)
        return place == 0 or self._in_flight[place - 1].is_begun

    def _has_begun(self, ahead: Ahead) -> None:
        with self._changed:
            ahead.is_begun = not ahead.has_to_go
            self._changed.notify_all()

    def _next(self, session: Session, guess: Guess, rests_until: Deadline) -> Ahead | None:
        """Take the next chunk; None if there is none, which is noted in the place where it would have come."""
        self._rest(rests_until)
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
            with self._changed:
                if self._is_ended:
                    self._order.put(ended)
                    self._changed.notify_all()
                    return None
                if self._stopped.is_set():
                    return None
                ahead = Ahead(applying=applying, session=session, deadline=self._clerk.deadline(self._chunk_s))
                self._in_flight.append(ahead)
                self._order.put(ahead)
                return ahead

    def _rest(self, until: Deadline) -> None:
        """Leave the chunks to others while there is no connection; where nobody has one, they are taken still."""
        if until.passed:
            return
        with self._changed:
            self._resting += 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_ended or self._stopped.is_set() or self._resting == len(self._sessions), until.left_s()
            )
            self._resting -= 1

    def _hold(self, ahead: Ahead) -> None:
        """Hold a transaction until its turn has come; let it go where others want what it has, or it takes long."""
        until = Deadline.after(self._chunk_s * WAITING_PART_MAX, self._clerk.clock)
        while ahead.transaction is not None and not ahead.is_taken:
            told = self._waits_for(lambda: ahead.is_taken or ahead.has_to_go or self._stopped.is_set())
            with ahead.lock:
                if ahead.transaction is None or ahead.is_taken:
                    break
                if told or until.passed or ahead.transaction.holds_up(but=self._later(ahead)):
                    with self._changed:
                        ahead.is_begun = False
                    ahead.let_go()
        if ahead.has_to_close and not ahead.is_taken:
            ahead.session.disconnect()

    def _later(self, ahead: Ahead) -> list[int]:
        """Return the backends that are at work for later chunks: those may wait. A pooler's are nobody's for long."""
        with self._changed:
            later = self._in_flight[self._in_flight.index(ahead) + 1 :]
        return [other.session.backend_pid for other in later if other.session.backend_pid is not None]

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Interrupted("the worker was told to stop")
        if self._interrupted():
            raise Interrupted(INTERRUPTED)
