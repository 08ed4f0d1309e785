"""The faults, and at which boundaries each one is something that really happens."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from pgonce.crashtest.boundary import Boundary
from pgonce.crashtest.wire import Kind

# Statements that a server does not answer with 40001: they do nothing, or nothing that could collide.
_NEVER_SERIALIZATION = re.compile(
    r"(?:begin|start|rollback|abort|savepoint|release|set|reset|show|discard|deallocate|listen|unlisten|prepare)\b",
    re.IGNORECASE,
)


class Fault(enum.Enum):
    """What is done to the program."""

    CUT_BEFORE = "cut-before"
    CUT_AFTER = "cut-after"
    SERIALIZATION = "serialization"
    KILL = "kill"
    TERMINATE = "terminate"
    CRASH = "crash"

    @property
    def words(self) -> str:
        """Say in a sentence what happens."""
        return WORDS[self]


WORDS: dict[Fault, str] = {
    Fault.CUT_BEFORE: "the connection is cut before the server gets the message",
    Fault.CUT_AFTER: "the server did it, and its answer is lost with the connection (the lost ACK)",
    Fault.SERIALIZATION: "the server refuses it with a serialization failure (40001)",
    Fault.KILL: "the program is killed (SIGKILL) with every process it started",
    Fault.TERMINATE: "an administrator terminates the backend (57P01)",
    Fault.CRASH: "the server crashes and recovers",
}

_ON_BOTH_SIDES = (Fault.KILL, Fault.TERMINATE, Fault.CRASH)


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault and the side of the boundary on which it falls."""

    fault: Fault
    is_after: bool

    @property
    def name(self) -> str:
        """Return the fault's name; one that can come on both sides of the statement says on which it did."""
        if self.fault in _ON_BOTH_SIDES:
            return f"{self.fault.value} ({'after' if self.is_after else 'before'})"
        return str(self.fault.value)

    @property
    def words(self) -> str:
        """Say in a sentence what happens, and on which side of the statement."""
        if self.fault not in _ON_BOTH_SIDES:
            return self.fault.words
        return f"{self.fault.words}, {'after the server did it' if self.is_after else 'before the server saw it'}"


def blows(fault: Fault) -> tuple[Blow, ...]:
    """Return what a fault does: some can come before the server sees the message, and after it acted on it."""
    if fault in _ON_BOTH_SIDES:
        return (Blow(fault, is_after=True), Blow(fault, is_after=False))
    return (Blow(fault, is_after=fault is Fault.CUT_AFTER),)


def applies(fault: Fault, boundary: Boundary) -> bool:
    """Say whether a fault can happen at a boundary at all."""
    if boundary.kind is Kind.TERMINATE:  # the program does not wait for an answer: a kill comes at any moment after it
        return fault is Fault.CUT_BEFORE
    if fault is Fault.SERIALIZATION:
        is_quiet = _NEVER_SERIALIZATION.match(boundary.statement) or not boundary.statement
        is_copy_end = boundary.kind is Kind.COPY_DONE
        return boundary.can_fail and boundary.kind is not Kind.STARTUP and (is_copy_end or not is_quiet)
    if fault in (Fault.TERMINATE, Fault.CRASH):
        return boundary.kind is not Kind.COPY_FAIL
    return True
