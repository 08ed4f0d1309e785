"""Acknowledged commits vanish under a live worker, which remembers how far it was."""

from __future__ import annotations

from collections.abc import Iterator

from pgonce.errors import Inconclusive
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import ADD, open_books, total
from pgonce.lab.stage import Connection, Stage

EVENTS, AMOUNT = 6, 100
COPIED_AT, SET_BACK_AT = 2, 4

MOVE_ANYHOW = "update position set done = %s returning done"
MOVE_FROM = "update position set done = %s where done = %s returning done"


def right(stage: Stage) -> Iterator[Line]:
    """Every move says from where: if the stored position is another, nothing is committed and it is read again."""
    worker, remembered, _ = _worker_that_lost_commits(stage)
    done, rewound = remembered, False
    while done < EVENTS:
        stage.execute("worker", worker, ADD, AMOUNT)
        if stage.execute("worker", worker, MOVE_FROM, done + 1, done):
            stage.commit("worker", worker)
            done += 1
        else:
            worker.rollback()
            [(done,)] = stage.execute("worker", worker, "select done from position")
            worker.rollback()
            rewound = True
            stage.say("worker", f"the stored position is {done}: goes on from there")
    if not rewound:
        raise Inconclusive("the worker did not notice that commits are gone. Run it again.")
    yield line(total(stage), EVENTS * AMOUNT, remembered=remembered, noticed="yes", done=_stored(stage))


def wrong(stage: Stage) -> Iterator[Line]:
    """The position in memory is believed, and written over the stored one."""
    worker, remembered, stored = _worker_that_lost_commits(stage)
    done, applied = remembered, 0
    while done < EVENTS:
        stage.execute("worker", worker, ADD, AMOUNT)
        stage.execute("worker", worker, MOVE_ANYHOW, done + 1)
        stage.commit("worker", worker)
        done += 1
        applied += 1
    noticed = "yes" if applied == EVENTS - stored else "no"
    yield line(total(stage), EVENTS * AMOUNT, remembered=remembered, noticed=noticed, done=_stored(stage))


def _worker_that_lost_commits(stage: Stage) -> tuple[Connection, int, int]:
    """Return a worker, what it remembers, and what is stored, after the server was set back behind the former."""
    open_books(stage, {})
    stage.sql("drop table if exists position")
    stage.sql("create table position (done integer not null)")
    stage.sql("insert into position values (0)")
    _apply(stage, stage.connect("worker"), 0, COPIED_AT)
    stage.copy_data()
    remembered = _apply(stage, stage.connect("worker"), COPIED_AT, SET_BACK_AT)
    stage.set_back()
    stored = _stored(stage)
    stage.say("monitor", f"the stored position is {stored}")
    if stored >= remembered:
        raise Inconclusive(
            f"no acknowledged commit went away: {remembered} were acknowledged, and the stored position is {stored}. "
            "Run it again."
        )
    stage.say("worker", f"connects again; remembers that {remembered} were acknowledged")
    return stage.connect("worker"), remembered, stored


def _stored(stage: Stage) -> int:
    return int(stage.value("select done from position"))


def _apply(stage: Stage, worker: Connection, done: int, up_to: int) -> int:
    """Apply events up to a position; return the last position whose COMMIT was acknowledged."""
    for position in range(done, up_to):
        stage.execute("worker", worker, ADD, AMOUNT)
        stage.execute("worker", worker, MOVE_FROM, position + 1, position)
        if stage.commit("worker", worker) == "COMMIT":
            done = position + 1
    return done


SCENARIO = Scenario(
    name="lost-commits",
    title="Acknowledged commits are gone",
    question="A failover lost the last commits, and the worker lives on. It remembers them. Where does it go on?",
    right_way="From what is stored: each chunk moves the position by compare-and-set in its own transaction.",
    right=right,
    wrong_way="From what it remembers: the lost events are never applied, and the position says that they were.",
    wrong=wrong,
    stops_server=True,
)
