"""The server is stopped at once in the middle of a batch, and recovers."""

from __future__ import annotations

from collections.abc import Iterator

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import ADD, LOCK, MARK, apply_once, open_books, total
from pgonce.lab.stage import Connection, Stage

EVENTS = {"e1": 100, "e2": 100}


def right(stage: Stage) -> Iterator[Line]:
    """The whole batch again: what was committed answers already, what was not is applied."""
    _crash_before_the_second_commit(stage)
    again = stage.connect("again")
    answers = [apply_once(stage, "again", again, event_id) for event_id in EVENTS]
    yield line(total(stage), 200, crashed="before_second_commit", rerun="/".join(answers))


def wrong(stage: Stage) -> Iterator[Line]:
    """The offset is saved in a file before COMMIT, so it leads what is in the database."""
    offset = stage.folder / "offset"
    _crash_before_the_second_commit(stage, save_offset=lambda: _save(stage, str(offset)))
    done = int(offset.read_text())
    again = stage.connect("again")
    left = list(EVENTS)[done:]
    stage.say("again", f"reads offset {done}: {len(left)} events left")
    for event_id in left:
        apply_once(stage, "again", again, event_id)
    yield line(total(stage), 200, crashed="before_second_commit", offset=done, rerun=f"{len(left)}_events")


def _crash_before_the_second_commit(stage: Stage, save_offset: object = None) -> None:
    open_books(stage, EVENTS)
    worker: Connection = stage.connect("worker")
    apply_once(stage, "worker", worker, "e1")
    [(amount, _)] = stage.execute("worker", worker, LOCK, "e2")
    stage.execute("worker", worker, ADD, amount)
    stage.execute("worker", worker, MARK, "e2")
    if callable(save_offset):
        save_offset()
    stage.crash()


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
