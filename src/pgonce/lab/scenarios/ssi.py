"""A real serialization failure: two withdrawals that are each allowed, and together are not."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import open_books, total
from pgonce.lab.stage import Connection, Stage

ACCOUNTS = {"checking": 100, "savings": 100}
WITHDRAWN = 150
LEFT = sum(ACCOUNTS.values()) - WITHDRAWN
"""Together the accounts may not fall below zero, so only one of the two withdrawals is allowed."""


def right(stage: Stage) -> Iterator[Line]:
    """Both SERIALIZABLE; the one that gets 40001 begins again from its first statement."""
    open_books(stage, {}, ACCOUNTS)
    a, b = _two(stage, "serializable")
    failed_at = "nowhere"
    for phase, step in (("statement", _take_b), ("commit", _commit_both)):
        try:
            step(stage, a, b)
        except psycopg.errors.SerializationFailure:
            failed_at = phase
            break
    b.rollback()
    stage.say("B", "begins again: reads, decides, writes")
    allowed = _is_allowed(stage, "B", b)
    b.rollback()
    yield line(total(stage), LEFT, failed="40001", at=failed_at, retried="whole", second_time=_word(allowed))


def wrong(stage: Stage) -> Iterator[Line]:
    """Both REPEATABLE READ, which sees no conflict in it: the check was true for each of them."""
    open_books(stage, {}, ACCOUNTS)
    a, b = _two(stage, "repeatable read")
    _take_b(stage, a, b)
    _commit_both(stage, a, b)
    yield line(total(stage), LEFT, isolation="repeatable_read", failed="nothing")


def _two(stage: Stage, isolation: str) -> tuple[Connection, Connection]:
    """Let both read, find it allowed, and A write."""
    a, b = stage.connect("A"), stage.connect("B")
    for actor, connection in (("A", a), ("B", b)):
        connection.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_").upper()]
        stage.say(actor, isolation)
        _is_allowed(stage, actor, connection)
    stage.execute("A", a, "update account set balance = balance - %s where name = 'checking'", WITHDRAWN)
    return a, b


def _is_allowed(stage: Stage, actor: str, connection: Connection) -> bool:
    [(there,)] = stage.execute(actor, connection, "select sum(balance)::bigint from account")
    return bool(there >= WITHDRAWN)


def _take_b(stage: Stage, _: Connection, b: Connection) -> None:
    stage.execute("B", b, "update account set balance = balance - %s where name = 'savings'", WITHDRAWN)


def _commit_both(stage: Stage, a: Connection, b: Connection) -> None:
    stage.commit("A", a)
    stage.commit("B", b)


def _word(allowed: bool) -> str:
    return "allowed" if allowed else "refused"


SCENARIO = Scenario(
    name="ssi",
    title="A real serialization failure",
    question="Two withdrawals read the same two accounts and write to different ones. Does the rule hold over both?",
    right_way="SERIALIZABLE, and on 40001 the whole transaction again, with everything that it decided.",
    right=right,
    wrong_way="REPEATABLE READ: each reads a state in which its own withdrawal is allowed, and both commit.",
    wrong=wrong,
)
