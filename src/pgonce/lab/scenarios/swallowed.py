"""A swallowed error: COMMIT is answered with ROLLBACK, and nobody is told."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg.pq import TransactionStatus

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import ADD, LOCK, MARK, apply_once, open_books, total
from pgonce.lab.stage import Connection, Stage

LOG_IT = "insert into audit_log values ('e1')"
"""A table that does not exist: somebody thought that logging must not break the job."""


def right(stage: Stage) -> Iterator[Line]:
    """Look at the transaction before COMMIT: if it has failed, it is rolled back and done again, without the log."""
    open_books(stage, {"e1": 100})
    worker = stage.connect("worker")
    _write_and_swallow(stage, worker)
    status = worker.info.transaction_status
    stage.say("worker", f"looks before COMMIT: the transaction is {status.name}")
    assert status is TransactionStatus.INERROR
    worker.rollback()
    again = apply_once(stage, "worker", worker, "e1")
    yield line(total(stage), 100, before_commit=status.name, rerun=again)


def wrong(stage: Stage) -> Iterator[Line]:
    """COMMIT raises nothing, the driver says COMMITTED, and the rows are not there."""
    open_books(stage, {"e1": 100})
    worker = stage.connect("worker")
    with worker.transaction() as transaction:
        _write_and_swallow(stage, worker)
    said = transaction.status.name
    stage.say("worker", f"no error; the driver says {said}; goes on to the next event")
    yield line(total(stage), 100, commit_raised="nothing", driver_said=said, server_did="ROLLBACK")


def _write_and_swallow(stage: Stage, worker: Connection) -> None:
    [(amount, _)] = stage.execute("worker", worker, LOCK, "e1")
    stage.execute("worker", worker, ADD, amount)
    stage.execute("worker", worker, MARK, "e1")
    try:
        stage.execute("worker", worker, LOG_IT)
    except psycopg.Error as error:
        stage.say("worker", f"swallows {error.sqlstate}: it was only the log")


SCENARIO = Scenario(
    name="swallowed",
    title="COMMIT that answers ROLLBACK",
    question="A statement failed and the program caught the error and went on. COMMIT raised nothing. Is it committed?",
    right_way="Refuse to commit a transaction that has failed, and look at what COMMIT answered: its tag.",
    right=right,
    wrong_way="Trust that no exception means committed. The server answered ROLLBACK, and the money is gone.",
    wrong=wrong,
)
