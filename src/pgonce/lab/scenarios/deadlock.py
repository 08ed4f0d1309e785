"""A real deadlock: two transfers in opposite directions, and what the victim does next."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import open_books, total
from pgonce.lab.stage import END_S_MAX, Connection, Stage

ACCOUNTS = {"a": 100, "b": 100}
MOVE = "update account set balance = balance + %s where name = %s"
PATIENCE = {"A": "10s", "B": "50ms"}
"""Whoever looks for the cycle first is the victim; it is always B."""


def right(stage: Stage) -> Iterator[Line]:
    """The victim does its whole transfer again."""
    b, sqlstate = _until_b_is_the_victim(stage)
    stage.execute("B", b, MOVE, -50, "b")
    stage.execute("B", b, MOVE, +50, "a")
    stage.commit("B", b)
    yield line(total(stage), sum(ACCOUNTS.values()), failed=sqlstate, retried="whole_transfer")


def wrong(stage: Stage) -> Iterator[Line]:
    """The victim repeats the statement that failed; the one before it was rolled back as well."""
    b, sqlstate = _until_b_is_the_victim(stage)
    stage.execute("B", b, MOVE, +50, "a")
    stage.commit("B", b)
    yield line(total(stage), sum(ACCOUNTS.values()), failed=sqlstate, retried="last_statement")


def _until_b_is_the_victim(stage: Stage) -> tuple[Connection, str | None]:
    open_books(stage, {}, ACCOUNTS)
    a, b = stage.connect("A"), stage.connect("B")
    for actor, connection in (("A", a), ("B", b)):
        connection.execute(f"set deadlock_timeout = '{PATIENCE[actor]}'")
        connection.commit()
    stage.execute("A", a, MOVE, -30, "a")
    stage.execute("B", b, MOVE, -50, "b")
    waiting = stage.start("A", lambda: stage.execute("A", a, MOVE, +30, "b"))
    stage.wait_until_blocked("A", by="B")
    sqlstate = None
    try:
        stage.execute("B", b, MOVE, +50, "a")
    except psycopg.errors.DeadlockDetected as error:
        sqlstate = error.sqlstate
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
