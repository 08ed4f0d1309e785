"""Reads that lie after a lost answer, because the COMMIT that was not answered is still running."""

from __future__ import annotations

from collections.abc import Iterator

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import (
    ADD,
    LOCK,
    LOOK,
    add_without_asking,
    apply_once,
    die_in_commit,
    gate_in_commit,
    open_books,
    total,
)
from pgonce.lab.stage import END_S_MAX, Connection, Stage

OF_A_STORED_EVENT = """begin;
select status from event where event_id = 'e1' for update;
update account set balance = balance + 100 where name = 'shop';
update event set status = 'completed' where event_id = 'e1';
commit"""

OF_A_NEW_EVENT = """begin;
insert into event (event_id, amount, status) values ('e1', 100, 'completed');
update account set balance = balance + 100 where name = 'shop';
commit"""

CLAIM = "insert into event (event_id, amount, status) values (%s, 100, 'completed') on conflict do nothing returning 1"


def right(stage: Stage) -> Iterator[Line]:
    """Ask in a way that waits for the transaction that is still running."""
    open_books(stage, {"e1": 100})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "update"):
        die_in_commit(stage, "worker", OF_A_STORED_EVENT)
        rerun = stage.start("again", lambda: apply_once(stage, "again", again, "e1"))
        stage.wait_until_blocked("again", by="worker")
    yield line(total(stage), 100, event="stored", asked="for_update", rerun=rerun.result(END_S_MAX))

    open_books(stage, {})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "insert"):
        die_in_commit(stage, "worker", OF_A_NEW_EVENT)
        rerun = stage.start("again", lambda: _claim_then_read(stage, again))
        stage.wait_until_blocked("again", by="worker")
    yield line(total(stage), 100, event="new", asked="insert_then_read", rerun=rerun.result(END_S_MAX))


def wrong(stage: Stage) -> Iterator[Line]:
    """Ask in a way that answers at once, with the state before the COMMIT that is still running."""
    open_books(stage, {"e1": 100})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "update"):
        die_in_commit(stage, "worker", OF_A_STORED_EVENT)
        [(_, status)] = stage.execute("again", again, LOOK, "e1")
        again.rollback()
        rerun = stage.start("again", lambda: add_without_asking(stage, "again", again, "e1", 100))
        stage.wait_until_blocked("again", by="worker")
    rerun.result(END_S_MAX)
    yield line(total(stage), 100, event="stored", asked="plain_select", it_said=status)

    open_books(stage, {})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "insert"):
        die_in_commit(stage, "worker", OF_A_NEW_EVENT)
        found = stage.execute("again", again, LOCK, "e1")
        again.rollback()
        rerun = stage.start("again", lambda: _insert_and_add(stage, again))
        stage.wait_until_blocked("again", by="worker")
    rerun.result(END_S_MAX)
    yield line(total(stage), 100, event="new", asked="for_update", it_said=f"{len(found)}_rows")


def _claim_then_read(stage: Stage, again: Connection) -> str:
    claimed = stage.execute("again", again, CLAIM, "e1")
    if claimed:
        stage.execute("again", again, ADD, 100)
    else:
        stage.execute("again", again, LOOK, "e1")
    stage.commit("again", again)
    return "applied" if claimed else "already"


def _insert_and_add(stage: Stage, again: Connection) -> None:
    """Believe that the event is new, and do not look whether the insert did anything."""
    stage.execute("again", again, CLAIM, "e1")
    stage.execute("again", again, ADD, 100)
    stage.commit("again", again)


SCENARIO = Scenario(
    name="stale-read",
    title="The read that lies",
    question="After a lost answer the next worker looks whether the event was applied. Can it believe what it reads?",
    right_way="Only what waits: for update of a row that existed before; for a new key, insert it on conflict do "
    "nothing and read in a second statement.",
    right=right,
    wrong_way="A plain select, or for update of a row that the running transaction has inserted: both answer at once, "
    "with the past.",
    wrong=wrong,
)
