"""Who owns a run: one start at a time, each with the next epoch.

A start takes a run over when its owner is gone: the backend that served it (pid and start time) lives no more. The
old start is ended under its row's lock, so a chunk that is being committed is waited for and one that comes later
moves nothing.
"""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pgonce.db.failure import DatabaseFailure
from pgonce.db.session import Session
from pgonce.db.transaction import Transaction
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.position import Held
from pgonce.errors import InvariantBroken, PgonceError, Retryable, RunOwned
from pgonce.model.cursor import Cursor, Position

# A killed job's backend is gone as soon as it notices: at once when idle, at the next client check when busy. A start
# that follows a kill waits this long for that before it says that somebody owns the run.
GONE_GRACE_S = 3.0

# A start that ends says so for at most this long; whoever comes next finds out by itself as well.
RELEASE_S = 2.0

# How often the owner is looked at while waiting for it.
LOOK_EVERY_S = 0.05

# Behind a connection pooler a backend says nothing about its client. Such an owner counts as gone when it has not moved
# its position for this long: twice the default deadline of a chunk. Fencing holds in any case; this is only patience.
POOLED_SILENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How a start wants to own its run."""

    job: str
    version: int
    run_id: int
    replay: bool
    checkpoint: str
    input_name: str
    take_over: bool
    wait_s: float


def owner_name() -> str:
    """Name this process for people: user, host and pid."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


def acquire(clerk: Clerk, claim: Claim) -> Held:
    """Own a run as its next start, at the position where the last one ended.

    Raises RunOwned, naming the owner, when a live start owns it after the wait.
    Safe to re-run: yes; every acquisition is a start of its own and moves nothing.
    """
    patience = clerk.deadline(max(claim.wait_s, GONE_GRACE_S))
    begun: list[Held] = []
    while True:
        try:
            return clerk.do(
                lambda transaction: _try_acquire(transaction, clerk.session, claim, begun), run_id=claim.run_id
            )
        except _Alive as alive:
            if patience.passed:
                raise RunOwned(
                    f"run {claim.run_id} belongs to start {alive.epoch} by {alive.owner}, begun {alive.started_at}, "
                    f"{alive.sign}. Wait for it (--wait SECONDS), or take the run over (--take-over): what it commits "
                    "afterwards is refused."
                ) from None
            clerk.sleep(LOOK_EVERY_S)


class _Alive(Exception):
    def __init__(self, start: tuple[Any, ...], epoch: int) -> None:
        super().__init__(start[7])
        self.epoch, self.owner, self.started_at = epoch, start[7], start[10]
        self.sign = "which is still connected"
        if start[8] is None:
            self.sign = f"whose connection is pooled; it counts as gone after {POOLED_SILENCE_S:.0f} s without a move"


def _try_acquire(transaction: Transaction, session: Session, claim: Claim, begun: list[Held]) -> Held:
    """Begin the next start; ``begun`` are those of this very call whose COMMIT got no answer: one may stand."""
    in_force = transaction.row("hold_job", job=claim.job)
    run = transaction.row("lock_run", run_id=claim.run_id)
    if run is None or in_force is None or in_force[0] != claim.version:
        raise Retryable(
            f"the definition of job {claim.job!r} was changed while run {claim.run_id} was begun; run again"
        )
    epoch = run[4]
    position, chunks = Cursor.start().position, 0
    if epoch:
        last = transaction.row("read_start", run_id=claim.run_id, epoch=epoch)
        if last is None:
            raise InvariantBroken(f"start {epoch} of run {claim.run_id} is missing")
        standing = next((held for held in begun if held.token == last[0]), None)
        if standing is not None:
            return standing
        if last[12] is None and not claim.take_over and alive(transaction, session, last):
            raise _Alive(last, epoch)
        last = transaction.row("lock_start", run_id=claim.run_id, epoch=epoch)
        assert last is not None
        transaction.row(
            "end_start", run_id=claim.run_id, epoch=epoch, token=last[0], how=f"taken over by {owner_name()}"
        )
        position = Position(last[1], last[2], last[3])
    inserted = transaction.row(
        "insert_start",
        run_id=claim.run_id,
        epoch=epoch + 1,
        replay=claim.replay,
        checkpoint=claim.checkpoint,
        input_name=claim.input_name,
        owner=owner_name(),
        backend_pid=session.backend_pid,
        backend_start=session.backend_start,
        position=position.offset,
        lines=position.lines,
        digest=position.digest,
    )
    moved = transaction.row("set_epoch", run_id=claim.run_id, epoch=epoch + 1)
    if inserted is None or moved is None:
        raise InvariantBroken(f"run {claim.run_id} changed under its lock")
    held = Held(
        run_id=claim.run_id, epoch=epoch + 1, token=inserted[0], replay=claim.replay, chunks=chunks, position=position
    )
    begun.append(held)
    return held


def alive(transaction: Transaction, session: Session, start: tuple[Any, ...]) -> bool:
    """Say whether the owner of a start that has not ended is still there; ``start`` is a row of ``read_start``."""
    backend_pid, backend_start, silent_s = start[8], start[9], start[14]
    if backend_pid is None:
        return bool(silent_s < POOLED_SILENCE_S) and not _process_gone(start[7])
    if (backend_pid, backend_start) == (session.backend_pid, session.backend_start):
        return False
    return transaction.row("backend_alive", pid=backend_pid, started=backend_start) is not None


def _process_gone(owner: str) -> bool:
    """Say whether an owner was a process of this host and user that has ended; behind a pooler nothing else tells.

    Wrong where two hosts share a name: then a live owner is fenced off, which costs it its last chunk and nobody money.
    """
    place, _, pid = owner.rpartition(":")
    if place != owner_name().rpartition(":")[0] or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def release(clerk: Clerk, held: Held, how: str) -> None:
    """End this start, so that the next need not wait. A start that cannot say so is found gone all the same.

    Never raises: it runs while another exception is on its way, also when the command's own time is up.
    Safe to re-run: yes.
    """
    briefly = replace(clerk, patience_s=RELEASE_S, until=None)
    with suppress(PgonceError, DatabaseFailure):
        briefly.do(
            lambda transaction: transaction.row(
                "end_start", run_id=held.run_id, epoch=held.epoch, token=held.token, how=how
            )
        )
