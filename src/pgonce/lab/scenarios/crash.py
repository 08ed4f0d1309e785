"""The server is stopped at once in the middle of a batch, and recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from psycopg.pq import TransactionStatus

from pgonce.errors import Inconclusive
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import ADD, LOCK, MARK, apply_once, open_books, total
from pgonce.lab.stage import Connection, Stage

EVENTS = {"e1": 100, "e2": 100}


def right(stage: Stage) -> Iterator[Line]:
    """The whole batch again: what was committed answers already, what was not is applied."""
    crashed = _crash_before_the_second_commit(stage)
    again = stage.connect("again")
    answers = [apply_once(stage, "again", again, event_id) for event_id in EVENTS]
    yield line(total(stage), 200, crashed=crashed, rerun="/".join(answers))


def wrong(stage: Stage) -> Iterator[Line]:
    """The offset is saved in a file before COMMIT, so it leads what is in the database."""
    offset = stage.folder / "offset"
    crashed = _crash_before_the_second_commit(stage, save_offset=lambda: _save(stage, str(offset)))
    done = int(offset.read_text())
    again = stage.connect("again")
    left = list(EVENTS)[done:]
    stage.say("again", f"reads offset {done}: {len(left)} events left")
    for event_id in left:
        apply_once(stage, "again", again, event_id)
    yield line(total(stage), 200, crashed=crashed, offset=done, rerun=f"{len(left)}_events")


def _crash_before_the_second_commit(stage: Stage, save_offset: Callable[[], None] | None = None) -> str:
    """Crash the server while the second event is written and not committed; return where, as the tables show it."""
    open_books(stage, EVENTS)
    worker: Connection = stage.connect("worker")
    apply_once(stage, "worker", worker, "e1")
    [(amount, _)] = stage.execute("worker", worker, LOCK, "e2")
    stage.execute("worker", worker, ADD, amount)
    stage.execute("worker", worker, MARK, "e2")
    if save_offset is not None:
        save_offset()
    was_open = worker.info.transaction_status is TransactionStatus.INTRANS
    stage.crash()
    stands = [stage.value("select status from event where event_id = %s", event_id) for event_id in EVENTS]
    stage.say("monitor", f"after the recovery: e1 {stands[0]}, e2 {stands[1]}, balance {total(stage)}")
    if not was_open or stands != ["completed", "pending"] or total(stage) != EVENTS["e1"]:
        raise Inconclusive(
            f"the server did not crash between the two commits: the events are {' and '.join(stands)}. Run it again."
        )
    return "before_second_commit"


def _save(stage: Stage, path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(str(len(EVENTS)))
    stage.say("worker", f"saves offset {len(EVENTS)} in its file, to commit next")


SCENARIO = Scenario(
    name="crash",
    title="The server crashes and recovers",
    question="One event was committed, the next one was written but not committed, and the server went down.",
    right_way="Run the batch again from its beginning. Recovery kept what was committed, and each event says so.",
    right=right,
    wrong_way="The worker saved its offset in a file before COMMIT. After the crash it says done, and the event is "
    "skipped for ever.",
    wrong=wrong,
    stops_server=True,
)
