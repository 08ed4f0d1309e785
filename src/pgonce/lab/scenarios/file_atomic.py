"""A checkpoint per item is not a whole file that is atomic: rows that belong together stand half applied."""

from __future__ import annotations

from collections.abc import Iterator

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import open_books, total
from pgonce.lab.stage import Connection, Stage

OPENING = {"company": 1000, "ann": 0, "bob": 0}
PAYROLL = (("company", -300), ("ann", 100), ("bob", 100), ("cleo", 100))
"""One payment out and three in, which together move nothing. Cleo has no account yet."""


def right(stage: Stage) -> Iterator[Line]:
    """One transaction for the file: a bad row applies nothing, and the corrected run applies all of it."""
    open_books(stage, {}, OPENING)
    worker = stage.connect("worker")
    _whole_file(stage, worker)
    yield line(total(stage), 1000, checkpoint="file", applied=_applied(stage))
    stage.sql("insert into account (name, balance) values ('cleo', 0)")
    stage.say("worker", "cleo has an account now: the same file again")
    corrected = "yes" if stage.value("select count(*) from account where name = 'cleo'") == 1 else "no"
    _whole_file(stage, worker)
    yield line(total(stage), 1000, checkpoint="file", corrected=corrected, applied=_applied(stage))


def wrong(stage: Stage) -> Iterator[Line]:
    """A commit for each row: after the bad one, money has left the company and not arrived."""
    open_books(stage, {}, OPENING)
    worker = stage.connect("worker")
    for account, amount in PAYROLL:
        if not _move(stage, worker, account, amount):
            worker.rollback()
            stage.say("worker", f"there is no account {account}: stops here")
            break
        stage.commit("worker", worker)
    yield line(total(stage), 1000, checkpoint="item", applied=_applied(stage))


def _applied(stage: Stage) -> str:
    """Look how many rows of the file stand in the accounts."""
    there = dict(stage.sql("select name, balance from account"))
    applied = [account for account, amount in PAYROLL if there.get(account) == OPENING.get(account, 0) + amount]
    return f"{len(applied)}_of_{len(PAYROLL)}"


def _whole_file(stage: Stage, worker: Connection) -> None:
    for account, amount in PAYROLL:
        if not _move(stage, worker, account, amount):
            worker.rollback()
            stage.say("worker", f"there is no account {account}: everything is rolled back")
            return
    stage.commit("worker", worker)


def _move(stage: Stage, worker: Connection, account: str, amount: int) -> bool:
    text = "update account set balance = balance + %s where name = %s returning balance"
    return bool(stage.execute("worker", worker, text, amount, account))


SCENARIO = Scenario(
    name="file-atomic",
    title="Per item is not per file",
    question="The fourth row of a payroll is bad. What of the first three?",
    right_way="If the rows belong together, the file is one transaction (--checkpoint all): nothing, or everything.",
    right=right,
    wrong_way="A checkpoint per item, which is right for rows that stand alone: here the money has left the company, "
    "has not arrived, and the totals are wrong for everybody who looks now.",
    wrong=wrong,
)
