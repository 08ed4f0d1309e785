"""Reads that lie after a lost answer, because the COMMIT that was not answered is still running."""

from __future__ import annotations

from collections.abc import Iterator

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import (
    ADD,
    LOCK,
    LOOK,
    add_and_mark,
    apply_once,
    committed_as,
    die_in_commit,
    gate_in_commit,
    open_books,
    total,
)
from pgonce.lab.stage import END_S_MAX, Connection, Stage

OF_A_STORED_EVENT = """begin;
select status from event where event_id = 'e1' for update;
update account set balance = balance + 100 where name = 'shop';
update event set status = 'completed' where event_id = 'e1'"""

OF_A_NEW_EVENT = """begin;
insert into event (event_id, amount, status) values ('e1', 100, 'completed');
update account set balance = balance + 100 where name = 'shop'"""

CLAIM = "insert into event (event_id, amount, status) values (%s, 100, 'completed') on conflict do nothing returning 1"
UPSERT = """insert into event (event_id, amount, status) values (%s, 100, 'completed')
on conflict (event_id) do update set status = excluded.status"""


def right(stage: Stage) -> Iterator[Line]:
    """Ask in a way that waits for the transaction that is still running."""
    open_books(stage, {"e1": 100})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "update"):
        die_in_commit(stage, "worker", OF_A_STORED_EVENT)
        rerun = stage.start("again", lambda: apply_once(stage, "again", again, "e1"))
        stage.wait_until_blocked("again", by="worker")
    said = rerun.result(END_S_MAX)
    yield line(total(stage), 100, event="stored", asked="for_update", rerun=said)

    open_books(stage, {})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "insert"):
        die_in_commit(stage, "worker", OF_A_NEW_EVENT)
        rerun = stage.start("again", lambda: _claim_then_read(stage, again))
        stage.wait_until_blocked("again", by="worker")
    said = rerun.result(END_S_MAX)
    yield line(total(stage), 100, event="new", asked="insert_then_read", rerun=said)


def wrong(stage: Stage) -> Iterator[Line]:
    """Ask in a way that answers at once, with the state before the COMMIT that is still running."""
    open_books(stage, {"e1": 100})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "update"):
        die_in_commit(stage, "worker", OF_A_STORED_EVENT)
        rerun = stage.start("again", lambda: read_then_write(stage, again))
        stage.wait_until_blocked("again", by="worker")
    said, _ = rerun.result(END_S_MAX)
    yield line(total(stage), 100, event="stored", asked="plain_select", it_said=said)

    open_books(stage, {})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "insert"):
        die_in_commit(stage, "worker", OF_A_NEW_EVENT)
        rerun = stage.start("again", lambda: lock_then_upsert(stage, again))
        stage.wait_until_blocked("again", by="worker")
    said, _ = rerun.result(END_S_MAX)
    yield line(total(stage), 100, event="new", asked="for_update", it_said=said)


def _claim_then_read(stage: Stage, again: Connection) -> str:
    """Insert the key, which waits for whoever inserted it; if that did nothing, say what stands there."""
    claimed = stage.execute("again", again, CLAIM, "e1")
    if claimed:
        stage.execute("again", again, ADD, 100)
        return committed_as("applied", stage.commit("again", again))
    [(_, status)] = stage.execute("again", again, LOOK, "e1")
    stage.commit("again", again)
    return "already" if status == "completed" else str(status)


def read_then_write(stage: Stage, again: Connection) -> tuple[str, str]:
    """Believe a plain select: write if it does not say completed. Return what it said, and what was done."""
    [(amount, status)] = stage.execute("again", again, LOOK, "e1")
    again.rollback()
    return status, "already" if status == "completed" else add_and_mark(stage, "again", again, "e1", amount)


def lock_then_upsert(stage: Stage, again: Connection) -> tuple[str, str]:
    """Believe a ``for update`` that finds no row: the event is new, so write it, and add. Return both as above.

    The upsert waits for the transaction that inserted the row, writes over it, and raises nothing.
    """
    found = stage.execute("again", again, LOCK, "e1")
    if found and found[0][1] == "completed":
        again.rollback()
        return f"{len(found)}_rows", "already"
    stage.execute("again", again, UPSERT, "e1")
    stage.execute("again", again, ADD, 100)
    return f"{len(found)}_rows", committed_as("applied", stage.commit("again", again))


SCENARIO = Scenario(
    name="stale-read",
    title="The read that lies",
    question="After a lost answer the next worker looks whether the event was applied. Can it believe what it reads?",
    right_way="Only what waits: for update of a row that existed before; for a new key, insert it on conflict do "
    "nothing and read in a second statement.",
    right=right,
    wrong_way="A plain select, or for update of a row that the running transaction has inserted: both answer at once, "
    "with the past. The one worker adds because it read pending. The other one takes no row for a new event: only its "
    "upsert waits, it writes over the event without an error, and the money is added again.",
    wrong=wrong,
)
