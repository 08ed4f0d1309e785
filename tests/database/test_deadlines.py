"""R1: the deadline of a start ends it between two chunks, bounds what comes after the last one, and leaves no owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from database.jobs import Desk, Watching
from pgonce.errors import Retryable
from pgonce.model.deadline import Deadline


def test_a_start_ends_between_two_chunks_at_its_deadline_and_the_next_goes_on(desk: Desk) -> None:
    """What is committed stays, the start says that it ended, and the same command finishes the run."""
    path = desk.csv([(number, 10, "") for number in range(1, 8)])
    now = [0.0]
    clerk = replace(desk.clerk, clock=lambda: now[0])

    def one_minute_a_chunk(_count: int) -> None:
        now[0] += 60.0

    with pytest.raises(Retryable, match="the deadline of this start has passed at line 3"):
        desk.run(path, clerk=clerk, observer=Watching(one_minute_a_chunk), chunk_rows=1, deadline_s=100.0)
    assert desk.statuses() == dict.fromkeys("12", "completed")
    assert desk.one("select ended_how from pgonce.start") == "stopped: Retryable"
    report = desk.run(path)
    assert (report.exit_code, report.epoch, report.run.applied.rows) == (0, 2, 7)
    desk.sound()


def test_a_chunk_has_no_more_than_what_the_start_has_left(desk: Desk) -> None:
    """The server's own time-outs are derived from the earlier of the two deadlines."""
    desk.sql("create table seen (ms text)")
    effect = "insert into seen select setting from pg_settings where name = 'statement_timeout'"
    desk.run(desk.csv([(1, 10, "")]), effect=effect, deadline_s=20.0, chunk_deadline_s=500.0)
    desk.run(desk.csv([(2, 10, "")]), effect=effect, deadline_s=2000.0, chunk_deadline_s=500.0)
    first, second = (int(ms) for (ms,) in desk.sql("select ms from seen"))
    assert 100 <= first <= 20_000 < second <= 500_000


def test_the_earlier_of_two_deadlines_counts(desk: Desk) -> None:
    """A clerk without a deadline of its own has none; one with a deadline never promises more than is left of it."""
    clock = desk.clerk.clock
    assert replace(desk.clerk, until=None).deadline(5.0).left_s() > 4.0
    bounded = replace(desk.clerk, until=Deadline.after(0.0, clock))
    assert bounded.deadline(5.0).passed
    assert replace(desk.clerk, until=Deadline.after(900.0, clock)).deadline(5.0).left_s() <= 5.0
