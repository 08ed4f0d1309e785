"""Status and runs: what is stored of jobs and runs, who owns them, and how far they are."""

from __future__ import annotations

from typing import Any

import pytest

from database.jobs import Desk, Watching, in_thread, until
from database.test_ownership import Gate
from pgonce.engine.ownership import owner_name
from pgonce.engine.status import RunStatus, job_statuses, run_statuses
from pgonce.errors import Interrupted
from pgonce.model.outcome import Tally

ROWS = [(n, n, "x") for n in range(1, 11)]


def only(desk: Desk, **options: Any) -> RunStatus:
    """Return the one run there is."""
    (found,) = run_statuses(desk.clerk, **options)
    return found


def test_events_and_findings_are_counted_by_job_in_rows_and_cents(desk: Desk) -> None:
    """Each job has its own counts; adopted events are told from those that have an effect."""
    desk.run(desk.csv([("a", 100, "x"), ("b", -5, "x"), ("a", 7, "x"), ("", 1, "x")]))
    desk.run(desk.csv([("a", 40, "x"), ("b", 2, "x")]), job="other", kind="adopt")
    other, pay = job_statuses(desk.clerk)
    assert (pay.job, pay.version) == ("pay", 1)
    assert pay.events == {"completed": Tally(1, 100), "failed": Tally(1, -5)}
    assert pay.findings == {"conflict": Tally(1, 7), "rejected": Tally(1, 0)}
    assert (other.events, other.findings) == ({"adopted": Tally(2, 42)}, {})
    assert job_statuses(desk.clerk, "other") == [other]
    assert job_statuses(desk.clerk, "none") == []
    assert set(pay.as_dict()) == {"job", "definition", "events", "findings"}


def test_a_running_run_names_its_live_owner_and_its_position(desk: Desk) -> None:
    """While it goes on: running, by whom, up to which line and byte of how many; afterwards finished."""
    path, gate = desk.csv(ROWS), Gate(2)
    with in_thread(desk.run, path, clerk=desk.make_clerk(), chunk_rows=2, observer=Watching(gate)):
        assert gate.reached.wait(30)
        found = only(desk, unfinished=True)
        gate.opened.set()
    assert (found.state, found.owner, found.owner_alive, found.starts) == ("running", owner_name(), True, 1)
    settled = len(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    assert (found.lines, found.position_bytes, found.input_bytes) == (5, settled, path.stat().st_size)
    assert found.counts.applied == Tally(4, 10)
    assert found.silent_s is not None
    assert run_statuses(desk.clerk, unfinished=True) == []
    done = only(desk)
    assert (done.state, done.ended_how, done.counts.applied.rows) == ("finished", "finished", 10)
    assert done.finished_at is not None


def test_a_stopped_run_says_how_it_stopped_and_a_killed_one_that_its_owner_is_gone(desk: Desk) -> None:
    """A start that could say so says how it ended; of one that could not, the owner is found gone."""
    path, watching, clerk = desk.csv(ROWS), Watching(), desk.make_clerk()
    with pytest.raises(Interrupted):
        desk.run(path, clerk=clerk, chunk_rows=2, observer=watching, interrupted=lambda: bool(watching.steps))
    stopped = only(desk)
    assert (stopped.state, stopped.ended_how) == ("stopped", "stopped: Interrupted")
    desk.sql("update pgonce.start set ended_at = null, ended_how = null")
    assert only(desk).state == "running"
    clerk.session.close()
    gone = until(lambda: (seen := only(desk)).state == "stopped" and seen, "a run whose owner is found gone")
    assert (gone.owner_alive, gone.ended_how, gone.owner) == (False, None, owner_name())


def test_runs_are_listed_newest_first_and_bounded(desk: Desk) -> None:
    """By job, and no more than asked for."""
    for number in range(3):
        desk.run(desk.csv([(number, 1, "x")]))
    desk.run(desk.csv([(9, 1, "y")]), job="other")
    assert [run.run_id for run in run_statuses(desk.clerk)] == [4, 3, 2, 1]
    assert [run.run_id for run in run_statuses(desk.clerk, limit=2)] == [4, 3]
    assert [run.run_id for run in run_statuses(desk.clerk, "pay", limit=2)] == [3, 2]


def test_a_finished_run_is_listed_from_its_record_and_a_touched_one_is_counted(desk: Desk) -> None:
    """Listing reads no event of a finished run; once something of it was reopened, its rows are counted."""
    desk.run(desk.csv(ROWS))
    desk.sql("update pgonce.run set outcome = jsonb_set(outcome, '{counts,applied,rows}', '77')")
    assert only(desk).counts.applied.rows == 77
    desk.sql("update pgonce.run set touched = true")
    assert only(desk).counts.applied.rows == 10
    desk.sql("update pgonce.run set touched = false, outcome = jsonb_set(outcome, '{counts,pending,rows}', '1')")
    assert only(desk).counts.applied.rows == 10


def test_a_registered_run_that_never_began_is_listed(desk: Desk) -> None:
    """A start that died between registering and owning leaves a run without a start."""
    desk.run(desk.csv([(1, 1, "x")]))
    desk.sql("insert into pgonce.run (job, version, kind, source, digest, reading, input_bytes) "
             "values ('pay', 1, 'apply', '', 'd', '{}', 5)")  # fmt: skip
    found = only(desk, unfinished=True)
    assert (found.state, found.starts, found.owner, found.input_name) == ("registered", 0, None, None)
