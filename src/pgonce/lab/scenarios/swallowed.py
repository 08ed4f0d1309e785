"""A swallowed error: COMMIT is answered with ROLLBACK, and nobody is told."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg.pq import TransactionStatus

from pgonce.errors import Inconclusive
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import ADD, LOCK, MARK, apply_once, open_books, total
from pgonce.lab.stage import Connection, Stage

LOG_IT = "insert into audit_log values ('e1')"
"""A table that does not exist: somebody thought that logging must not break the job."""


def right(stage: Stage) -> Iterator[Line]:
    """Look at the transaction before COMMIT: if it has failed, it is rolled back and done again, without the log.

    A worker before it, A, does not look there, and learns the same from the tag that COMMIT is answered with.
    """
    open_books(stage, {"e1": 100})
    a = stage.connect("A")
    _write_and_swallow(stage, a, "A")
    tag = stage.commit("A", a)
    if tag == "COMMIT":
        raise Inconclusive("the server committed a transaction that had failed, or it had not failed. Run it again.")
    stage.say("A", f"looks at the tag: {tag}, so nothing was committed")
    worker = stage.connect("worker")
    _write_and_swallow(stage, worker, "worker")
    status = worker.info.transaction_status
    stage.say("worker", f"looks before COMMIT: the transaction is {status.name}")
    if status is not TransactionStatus.INERROR:
        raise Inconclusive(f"the transaction had not failed before its COMMIT, it was {status.name}. Run it again.")
    worker.rollback()
    again = apply_once(stage, "worker", worker, "e1")
    yield line(total(stage), 100, before_commit=status.name, rerun=again)


def wrong(stage: Stage) -> Iterator[Line]:
    """COMMIT raises nothing, the driver says COMMITTED, and the rows are not there."""
    open_books(stage, {"e1": 100})
    worker = stage.connect("worker")
    raised = "nothing"
    try:
        with worker.transaction() as transaction:
            _write_and_swallow(stage, worker, "worker")
    except psycopg.Error as error:
        raised = error.sqlstate or "no_sqlstate"
    said = transaction.status.name
    stage.say("worker", f"it raised {raised}; the driver says {said}; goes on to the next event")
    yield line(total(stage), 100, commit_raised=raised, driver_said=said, server_did=_what_the_server_did(stage))


def _what_the_server_did(stage: Stage) -> str:
    """Look at the tables: both writes of the transaction are there, or neither is."""
    balance, status = total(stage), stage.value("select status from event where event_id = 'e1'")
    stage.say("monitor", f"looks: balance {balance}, event {status}")
    return {(0, "pending"): "ROLLBACK", (100, "completed"): "COMMIT"}.get((balance, status), "something_else")


def _write_and_swallow(stage: Stage, worker: Connection, actor: str) -> None:
    [(amount, _)] = stage.execute(actor, worker, LOCK, "e1")
    stage.execute(actor, worker, ADD, amount)
    stage.execute(actor, worker, MARK, "e1")
    try:
        stage.execute(actor, worker, LOG_IT)
    except psycopg.errors.UndefinedTable as error:
        stage.say(actor, f"swallows {error.sqlstate}: it was only the log")


SCENARIO = Scenario(
    name="swallowed",
    title="COMMIT that answers ROLLBACK",
    question="A statement failed and the program caught the error and went on. COMMIT raised nothing. Is it committed?",
    right_way="Refuse to commit a transaction that has failed, and look at what COMMIT answered: its tag.",
    right=right,
    wrong_way="Trust that no exception means committed. The server answered ROLLBACK, and the money is gone.",
    wrong=wrong,
)
