"""SIGKILL inside COMMIT: the worker is dead, and its backend goes on to commit."""

from __future__ import annotations

from collections.abc import Iterator

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import apply_once, die_in_commit, gate_in_commit, open_books, total, wait_until_ended
from pgonce.lab.stage import END_S_MAX, Stage

TOGETHER = """begin;
select status from event where event_id = 'e1' for update;
update account set balance = balance + 100 where name = 'shop';
update event set status = 'completed' where event_id = 'e1'"""

EFFECT_ALONE = """begin;
update account set balance = balance + 100 where name = 'shop'"""


def right(stage: Stage) -> Iterator[Line]:
    """The next worker waits for the dead one's row lock, and then sees what it did commit."""
    open_books(stage, {"e1": 100})
    again = stage.connect("again")
    with gate_in_commit(stage, "event", "update"):
        killed = die_in_commit(stage, "worker", TOGETHER)
        rerun = stage.start("again", lambda: apply_once(stage, "again", again, "e1"))
        waited = "yes" if stage.wait_until_blocked("again", by="worker") else "no"
    said = rerun.result(END_S_MAX)
    yield line(total(stage), 100, killed=killed, waited=waited, rerun=said)


def wrong(stage: Stage) -> Iterator[Line]:
    """Effect and mark are two transactions: the first one commits without its worker, the second never comes."""
    open_books(stage, {"e1": 100})
    with gate_in_commit(stage, "account", "update"):
        killed = die_in_commit(stage, "worker", EFFECT_ALONE)
    wait_until_ended(stage, "worker")
    left, status = total(stage), stage.value("select status from event where event_id = 'e1'")
    stage.say("monitor", f"the worker is gone, and its COMMIT took place: balance {left}, event {status}")
    effect = "committed" if left == 100 else "not_committed"
    mark = "never_written" if status == "pending" else "written"
    rerun = apply_once(stage, "again", stage.connect("again"), "e1")
    yield line(total(stage), 100, killed=killed, effect=effect, mark=mark, rerun=rerun)


SCENARIO = Scenario(
    name="kill9",
    title="SIGKILL inside COMMIT",
    question="The worker is killed while its COMMIT is running. Nobody is left to hear the answer. What stands?",
    right_way="Effect and completed in one transaction. The next worker locks the event, waits for the dead one's "
    "backend to end, and then looks.",
    right=right,
    wrong_way="The effect is committed first and the mark in a second transaction: the effect stays, the mark is "
    "missing, and the next worker adds the money again.",
    wrong=wrong,
)
