"""A real serialization failure: two withdrawals that are each allowed, and together are not."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pgonce.errors import Inconclusive
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import committed_as, open_books, total
from pgonce.lab.stage import Connection, Stage

ACCOUNTS = {"checking": 100, "savings": 100}
WITHDRAWN = 150
"""Together the accounts may not fall below zero, so only one of the two withdrawals is allowed."""
TAKE = "update account set balance = balance - %s where name = %s"


def right(stage: Stage) -> Iterator[Line]:
    """Both SERIALIZABLE; the one that gets 40001 begins again from its first statement."""
    open_books(stage, {}, ACCOUNTS)
    a, b, first_seen, _ = _two(stage, "serializable")
    failed, at = _commit_both(stage, a, b)
    if failed == "nothing":
        raise Inconclusive("neither withdrawal failed, so there was no serialization failure. Run it again.")
    b.rollback()
    stage.say("B", "begins again: reads, decides, and writes if it is allowed")
    seen, second_time = _withdraw(stage, "B", b, "savings")
    retried = "whole" if seen == first_seen - WITHDRAWN else "with_what_it_knew"
    yield line(total(stage), _left(), failed=failed, at=at, retried=retried, second_time=second_time)


def wrong(stage: Stage) -> Iterator[Line]:
    """Both REPEATABLE READ, which sees no conflict in it: the check was true for each of them."""
    open_books(stage, {}, ACCOUNTS)
    a, b, _, isolation = _two(stage, "repeatable read")
    failed, _ = _commit_both(stage, a, b)
    yield line(total(stage), _left(), isolation=isolation, failed=failed)


def _left() -> int:
    """Return the cents that may be left: as many of the two withdrawals as the accounts together allow."""
    there = sum(ACCOUNTS.values())
    return there - WITHDRAWN * min(2, there // WITHDRAWN)


def _two(stage: Stage, isolation: str) -> tuple[Connection, Connection, int, str]:
    """Let both read and find it allowed, then A write; return both, what B saw, and B's isolation in the server."""
    a, b = stage.connect("A"), stage.connect("B")
    for actor, connection in (("A", a), ("B", b)):
        connection.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_").upper()]
        [(real,)] = stage.execute(actor, connection, "show transaction_isolation")
        seen = _read(stage, actor, connection)
        if seen < WITHDRAWN:
            raise Inconclusive(f"{actor} saw only {seen} cents, so it was not allowed to begin with. Run it again.")
    stage.execute("A", a, TAKE, WITHDRAWN, "checking")
    return a, b, seen, real.replace(" ", "_")


def _read(stage: Stage, actor: str, connection: Connection) -> int:
    [(there,)] = stage.execute(actor, connection, "select sum(balance)::bigint from account")
    return int(there)


def _commit_both(stage: Stage, a: Connection, b: Connection) -> tuple[str, str]:
    """Let B write as well, and both commit, A first; return how B failed, and where."""
    at = "statement"
    try:
        stage.execute("B", b, TAKE, WITHDRAWN, "savings")
        at = "commit"
    except psycopg.errors.SerializationFailure as error:
        failed = str(error.sqlstate)
    stage.commit("A", a)
    if at == "commit":
        try:
            stage.commit("B", b)
        except psycopg.errors.SerializationFailure as error:
            return str(error.sqlstate), at
        return "nothing", "nowhere"
    return failed, at


def _withdraw(stage: Stage, actor: str, connection: Connection, account: str) -> tuple[int, str]:
    """Withdraw in one transaction, from its first statement on; return what it saw, and what it decided."""
    seen = _read(stage, actor, connection)
    if seen < WITHDRAWN:
        stage.say(actor, f"refuses: {WITHDRAWN} are more than {seen}")
        connection.rollback()
        return seen, "refused"
    stage.execute(actor, connection, TAKE, WITHDRAWN, account)
    return seen, committed_as("allowed", stage.commit(actor, connection))


SCENARIO = Scenario(
    name="ssi",
    title="A real serialization failure",
    question="Two withdrawals read the same two accounts and write to different ones. Does the rule hold over both?",
    right_way="SERIALIZABLE, and on 40001 the whole transaction again, with everything that it decided.",
    right=right,
    wrong_way="REPEATABLE READ: each reads a state in which its own withdrawal is allowed, and both commit.",
    wrong=wrong,
)
