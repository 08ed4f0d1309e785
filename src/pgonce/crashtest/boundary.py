"""Where a program can be failed, and what can be done to it there."""

from __future__ import annotations

import enum
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from pgonce.crashtest.wire import Kind
from pgonce.errors import ConfigurationError

_COMMIT = re.compile(r"(?:commit|end)\b(?! prepared)", re.IGNORECASE)
_ROLLBACK = re.compile(r"(?:rollback|abort)\b(?! prepared)(?! (?:work |transaction )?to\b)", re.IGNORECASE)
_SQLSTATE = re.compile(r"[0-9A-Z]{5}")


class Deed(enum.Enum):
    """What can be done at a boundary; *before* means that the server never sees the message."""

    PASS = "pass"  # noqa: S105 (not a password)
    DELAY = "delay"
    ERROR_BEFORE = "error before"
    CUT_BEFORE = "cut before"
    CUT_AFTER = "cut after"
    KILL_CLIENT_BEFORE = "kill client before"
    KILL_CLIENT_AFTER = "kill client after"
    TERMINATE_BEFORE = "terminate before"
    TERMINATE_AFTER = "terminate after"
    CALL_BEFORE = "call before"
    CALL_AFTER = "call after"

    @property
    def is_after(self) -> bool:
        """Say whether the server runs the statement first, and its answer is withheld."""
        return self in (Deed.CUT_AFTER, Deed.KILL_CLIENT_AFTER, Deed.TERMINATE_AFTER, Deed.CALL_AFTER)


@dataclass(frozen=True, slots=True)
class Action:
    """A deed and what it needs: an SQLSTATE, the process to kill (None: the peer), seconds to wait, what to call."""

    deed: Deed
    sqlstate: str = ""
    pid: int | None = None
    delay_s: float = 0.0
    call: Callable[[socket.socket], None] | None = None


PASS = Action(Deed.PASS)
CUT_BEFORE = Action(Deed.CUT_BEFORE)
CUT_AFTER = Action(Deed.CUT_AFTER)
TERMINATE_BEFORE = Action(Deed.TERMINATE_BEFORE)
TERMINATE_AFTER = Action(Deed.TERMINATE_AFTER)


def error_before(sqlstate: str) -> Action:
    """Make the server abort the transaction instead of running the statement; the client is told this SQLSTATE."""
    if not _SQLSTATE.fullmatch(sqlstate):
        raise ConfigurationError(f"{sqlstate!r} is not an SQLSTATE; write five digits or capital letters, like 40001")
    return Action(Deed.ERROR_BEFORE, sqlstate=sqlstate)


def kill_client_before(pid: int | None = None) -> Action:
    """SIGKILL the client instead of forwarding its message; None means the process at the Unix socket's other end."""
    return Action(Deed.KILL_CLIENT_BEFORE, pid=pid)


def kill_client_after(pid: int | None = None) -> Action:
    """SIGKILL the client after the server answered and before the answer reaches it."""
    return Action(Deed.KILL_CLIENT_AFTER, pid=pid)


def delay(seconds: float) -> Action:
    """Forward the message after a pause in seconds."""
    return Action(Deed.DELAY, delay_s=seconds)


def call_before(call: Callable[[socket.socket], None]) -> Action:
    """Call this with the client's socket instead of forwarding its message, then end the connection."""
    return Action(Deed.CALL_BEFORE, call=call)


def call_after(call: Callable[[socket.socket], None]) -> Action:
    """Call this after the server answered and before the answer reaches the client, then end the connection."""
    return Action(Deed.CALL_AFTER, call=call)


@dataclass(frozen=True, slots=True)
class Boundary:
    """One client message on which the server acts; all numbers start at 1, ``number`` counts over all connections.

    ``status`` is what the server last said of the transaction: ``I`` none, ``T`` in one, ``E`` in a failed one, empty
    before the login. ``statements`` is how many statements the one message holds.
    """

    connection: int
    nth: int
    number: int
    kind: Kind
    statement: str
    status: str = ""
    statements: int = 1

    @property
    def is_commit(self) -> bool:
        """Say whether the boundary is a COMMIT of the client."""
        return bool(_COMMIT.match(self.statement))

    @property
    def can_fail(self) -> bool:
        """Say whether a server can answer this boundary with an error: not a ROLLBACK, CopyFail or Terminate."""
        return self.kind not in (Kind.COPY_FAIL, Kind.TERMINATE) and not _ROLLBACK.match(self.statement)


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that happened; ``answer`` is the withheld command tag or SQLSTATE, empty if nothing was withheld."""

    boundary: Boundary
    action: Action
    answer: str = ""
