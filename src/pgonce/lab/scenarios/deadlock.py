"""A real deadlock: two transfers in opposite directions, and what the victim does next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg

from pgonce.errors import Inconclusive
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import committed_as, open_books, total
from pgonce.lab.stage import END_S_MAX, Connection, Stage

ACCOUNTS = {"a": 100, "b": 100}
TRANSFER_OF_A = ((-30, "a"), (+30, "b"))
TRANSFER_OF_B = ((-50, "b"), (+50, "a"))
AFTER_BOTH = {"a": 120, "b": 80}
MOVE = "update account set balance = balance + %s where name = %s"
PATIENCE = {"A": "10s", "B": "50ms"}
"""Whoever looks for the cycle first is the victim; it is always B."""


def right(stage: Stage) -> Iterator[Line]:
    """The victim does its whole transfer again."""
    b, sqlstate = _until_b_is_the_victim(stage)
    retried = _retry(stage, b, TRANSFER_OF_B)
    there = dict(stage.sql("select name, balance from account"))
    if there != AFTER_BOTH and sum(there.values()) == sum(AFTER_BOTH.values()):
        raise Inconclusive(f"not both transfers took place: the balances are {there}. Run it again.")
    yield line(total(stage), sum(ACCOUNTS.values()), failed=sqlstate, retried=retried)


def wrong(stage: Stage) -> Iterator[Line]:
    """The victim repeats the statement that failed; the one before it was rolled back as well."""
    b, sqlstate = _until_b_is_the_victim(stage)
    retried = _retry(stage, b, TRANSFER_OF_B[-1:])
    yield line(total(stage), sum(ACCOUNTS.values()), failed=sqlstate, retried=retried)


def _retry(stage: Stage, b: Connection, moves: Sequence[tuple[int, str]]) -> str:
    """Do these statements of B's transfer again and commit; return what that was."""
    for amount, name in moves:
        stage.execute("B", b, MOVE, amount, name)
    what = "whole_transfer" if len(moves) == len(TRANSFER_OF_B) else "last_statement"
    return committed_as(what, stage.commit("B", b))


def _until_b_is_the_victim(stage: Stage) -> tuple[Connection, str]:
    """Let two transfers block each other until the server ends B's; return B, rolled back, and its SQLSTATE."""
    open_books(stage, {}, ACCOUNTS)
    a, b = stage.connect("A"), stage.connect("B")
    for actor, connection in (("A", a), ("B", b)):
        connection.execute(f"set deadlock_timeout = '{PATIENCE[actor]}'")
        connection.commit()
    stage.execute("A", a, MOVE, *TRANSFER_OF_A[0])
    stage.execute("B", b, MOVE, *TRANSFER_OF_B[0])
    waiting = stage.start("A", lambda: stage.execute("A", a, MOVE, *TRANSFER_OF_A[1]))
    stage.wait_until_blocked("A", by="B")
    sqlstate = None
    try:
        stage.execute("B", b, MOVE, *TRANSFER_OF_B[1])
    except psycopg.errors.DeadlockDetected as error:
        sqlstate = error.sqlstate
    if sqlstate is None:
        raise Inconclusive("the server saw no deadlock, or chose the other victim. Run it again.")
    b.rollback()
    waiting.result(END_S_MAX)
    stage.commit("A", a)
    return b, sqlstate


SCENARIO = Scenario(
    name="deadlock",
    title="A real deadlock",
    question="Two transfers lock two accounts in opposite order. One is chosen to fail. What does it have to repeat?",
    right_way="Everything: 40P01 rolled the whole transaction back, so the whole transaction is done again.",
    right=right,
    wrong_way="Only the statement that failed: its other half was rolled back unnoticed, and money comes from nowhere.",
    wrong=wrong,
)
