"""UPDATE ... FROM with two rows for one account applies one of them, without an error."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import open_books, total
from pgonce.lab.stage import Stage

ROWS = (("shop", 100), ("shop", 250))

AGGREGATED = """update account set balance = balance + sums.amount
from (select account, sum(amount)::bigint as amount from chunk group by account) as sums
where sums.account = account.name"""

ROW_BY_ROW = """update account set balance = balance + chunk.amount from chunk where chunk.account = account.name"""


def right(stage: Stage) -> Iterator[Line]:
    """Add the rows up for each account, then update."""
    yield _apply(stage, AGGREGATED, way="group_by_account")


def wrong(stage: Stage) -> Iterator[Line]:
    """Join the rows as they are."""
    yield _apply(stage, ROW_BY_ROW, way="join_rows")


def _apply(stage: Stage, text: str, *, way: str) -> Line:
    open_books(stage, {})
    worker = stage.connect("worker")
    stage.execute("worker", worker, "create temporary table chunk (account text, amount bigint) on commit drop")
    for row in ROWS:
        stage.execute("worker", worker, "insert into chunk (account, amount) values (%s, %s)", *row)
    [(rows,)] = stage.execute("worker", worker, "select count(*) from chunk")
    error = "none"
    try:
        stage.execute("worker", worker, text)
        stage.commit("worker", worker)
    except psycopg.Error as raised:
        error = raised.sqlstate or "no_sqlstate"
    return line(total(stage), sum(amount for _, amount in ROWS), way=way, rows=rows, error=error)


SCENARIO = Scenario(
    name="sum-once",
    title="UPDATE ... FROM that drops rows",
    question="A chunk has two payments for one account, and one UPDATE ... FROM adds them. Are both added?",
    right_way="Aggregate per account first: one row of the chunk meets one row of the table.",
    right=right,
    wrong_way="Join as they are: PostgreSQL updates a row once per statement, takes one of the two, and says nothing.",
    wrong=wrong,
)
