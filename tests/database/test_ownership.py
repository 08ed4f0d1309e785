"""Who owns a run: one start at a time; a live one is named, a gone one is followed, a fenced one commits nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from database.jobs import Desk, Watching, frozen, in_thread, soon, until, until_blocked
from pgonce.engine.ownership import Claim, acquire, owner_name, release
from pgonce.errors import InputChanged, Interrupted, LeaseLost, RunOwned

ROWS = [(number, number, "n") for number in range(1, 21)]


GATE = """
create function gate() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(1); return null; end $$;
create constraint trigger t after insert on pgonce.effect deferrable initially deferred
for each row execute function gate()
"""


class Gate:
    """Holds a run after one of its chunks until it is opened."""

    def __init__(self, after: int) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._after = after

    def __call__(self, count: int) -> None:
        """Wait here if this is the chunk to wait after."""
        if count == self._after:
            self.reached.set()
            assert self.opened.wait(30)


def take(desk: Desk, clerk: object, **options: object) -> object:
    """Own run 1 as its next start."""
    values = {"replay": False, "checkpoint": "chunk", "input_name": "x", "take_over": False, "wait_s": 0.0} | options
    return acquire(clerk, Claim(job="pay", version=1, run_id=1, **values))


def test_a_live_owner_is_named_after_the_grace(desk: Desk) -> None:
    """L2, R34: the second start says who owns the run, since when, and what can be done; the first loses nothing."""
    path, gate = desk.csv(ROWS), Gate(2)
    with in_thread(desk.run, path, clerk=desk.make_clerk(), chunk_rows=5, observer=Watching(gate)) as first:
        assert gate.reached.wait(30)
        second = frozen(desk.make_clerk())
        with pytest.raises(RunOwned) as caught:
            desk.run(path, clerk=second, chunk_rows=5)
        gate.opened.set()
        assert first.result(timeout=30).start.applied.rows == 20
    text = str(caught.value)
    assert owner_name() in text
    assert "run 1 belongs to start 1" in text
    assert "--wait" in text
    assert "--take-over" in text
    assert second.clock() >= 3.0
    assert desk.run(path, clerk=second).shortcut


def test_waiting_ends_when_the_owner_has_finished(desk: Desk) -> None:
    """L2: --wait bounds the patience; the second start then finds everything done."""
    path, gate = desk.csv(ROWS), Gate(2)
    with in_thread(desk.run, path, clerk=desk.make_clerk(), chunk_rows=5, observer=Watching(gate)) as first:
        assert gate.reached.wait(30)
        looks = threading.Event()
        clerk = desk.make_clerk()

        def sleep(_: float) -> None:
            looks.set()
            gate.opened.set()
            first.result(timeout=30)

        report = desk.run(path, clerk=replace(clerk, sleep=sleep), chunk_rows=5, wait_s=30.0)
    assert looks.is_set()
    assert (report.start.applied.rows, report.run.applied.rows, report.exit_code) == (0, 20, 0)
    assert desk.effects() == {str(number): number for number, _, _ in ROWS}


@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_an_owner_that_is_gone_is_followed_at_once(desk: Desk, how: str) -> None:
    """L4, Q30, Q17, Q41: the same command again just resumes: no manual step, no wait for a lease, the same name."""
    path = desk.csv(ROWS)

    def stop(count: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    gone = desk.make_clerk()
    with pytest.raises(KeyboardInterrupt):
        desk.run(path, clerk=gone, chunk_rows=5, observer=Watching(stop))
    assert desk.sql("select ended_at from pgonce.start") == [(None,)]
    if how == "closed":
        gone.session.close()
    else:
        desk.sql("select pg_terminate_backend(%s)", gone.session.backend_pid)
    second = frozen(desk.make_clerk())
    report = desk.run(path, clerk=second, chunk_rows=5)
    assert (report.epoch, report.start.applied.rows, report.run.applied.rows) == (2, 10, 20)
    assert desk.positions() == [(1, 1, 11), (1, 2, 21)]
    assert "taken over by" in desk.one("select ended_how from pgonce.start where epoch = 1")


def test_a_take_over_fences_the_start_before_it(desk: Desk) -> None:
    """L2, Q3, Q12, Q16, R22: the old one's next chunk is LeaseLost and rolls back whole; the run goes on elsewhere."""
    desk.sql("create table log (event_id text)")
    effect = "insert into log select event_id from chunk"
    path, gate = desk.csv(ROWS), Gate(1)
    with in_thread(
        desk.run, path, clerk=desk.make_clerk(), chunk_rows=5, observer=Watching(gate), effect=effect
    ) as first:
        assert gate.reached.wait(30)
        stop = iter([False, True])
        with pytest.raises(Interrupted):
            desk.run(path, chunk_rows=5, take_over=True, effect=effect, interrupted=lambda: next(stop))
        gate.opened.set()
        with pytest.raises(LeaseLost, match=r"start 1 of run 1 does not own the run any more: taken over by"):
            first.result(timeout=30)
    assert len(desk.effects()) == desk.one("select count(*) from log") == 10
    assert desk.positions() == [(1, 1, 6), (1, 2, 11)]
    assert desk.run(path, effect=effect).run.applied.rows == 20
    assert desk.one("select count(*) from log") == 20


def test_a_take_over_waits_for_a_chunk_that_is_being_committed(desk: Desk) -> None:
    """L2, Q1, Q2: it begins where that chunk ended, never inside of it."""
    desk.sql(GATE)
    path = desk.csv(ROWS)
    with psycopg.connect(desk.dsn, autocommit=True) as gate:
        gate.execute("select pg_advisory_lock(1)")
        with (
            in_thread(desk.run, path, clerk=desk.make_clerk()) as first,
        ):
            committing = until_blocked(desk, gate.info.backend_pid)
            with in_thread(desk.run, path, clerk=desk.make_clerk(), take_over=True) as second:
                until_blocked(desk, committing)
                gate.execute("select pg_advisory_unlock(1)")
                report = second.result(timeout=30)
            with pytest.raises(LeaseLost):
                first.result(timeout=30)
    assert (report.start.applied.rows, report.run.applied.rows) == (0, 20)
    assert [lines for _, _, lines in desk.positions()] == [21, 21]
    assert report.run.balanced


def test_every_acquisition_has_the_next_epoch_and_a_token_of_its_own(desk: Desk) -> None:
    """L2, R21, R23: epochs grow by one; a release carries its token and does nothing to the next owner."""
    desk.run(desk.csv(ROWS))
    first = take(desk, desk.clerk)
    second = take(desk, desk.make_clerk(), take_over=True)
    assert [held.epoch for held in (first, second)] == [2, 3]
    release(desk.clerk, first, "late")
    assert desk.sql("select ended_how from pgonce.start where epoch = 3") == [(None,)]
    assert desk.one("select count(distinct token) from pgonce.start") == 3


def test_two_that_acquire_at_once_get_two_epochs_and_only_one_stays(desk: Desk) -> None:
    """L2, L4: the second waits at the run's row; then it finds a live owner."""
    desk.run(desk.csv(ROWS))
    with desk.clerk.session.transaction(soon(desk.clerk)) as transaction:
        transaction.row("lock_run", run_id=1)
        pid = desk.clerk.session.backend_pid
        assert pid is not None
        one, two = frozen(desk.make_clerk()), frozen(desk.make_clerk())
        with in_thread(take, desk, one) as first, in_thread(take, desk, two) as second:
            until(
                lambda: (
                    len(desk.sql("select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0")) == 2
                ),
                "both",
            )
            transaction.connection.execute("commit")
            transaction.connection.execute("begin")
        outcomes = [future.exception() for future in (first, second)]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "RunOwned"]


def test_an_owner_behind_a_pooler_counts_as_gone_after_a_silence(desk: Desk) -> None:
    """L4, R43: there a backend says nothing about its client; fencing holds, the silence is only patience."""
    desk.run(desk.csv(ROWS))
    take(desk, desk.make_clerk())
    desk.sql("update pgonce.start set backend_pid = null, backend_start = null where epoch = 2")
    with pytest.raises(RunOwned):
        take(desk, frozen(desk.clerk))
    desk.sql("update pgonce.start set moved_at = moved_at - interval '121 seconds' where epoch = 2")
    assert take(desk, frozen(desk.clerk)).epoch == 3


def test_a_pid_that_another_backend_has_now_is_not_the_owner(desk: Desk) -> None:
    """R34, Q17: pid and start time together name a backend."""
    desk.run(desk.csv(ROWS))
    other = desk.make_clerk()
    take(desk, other)
    desk.sql("update pgonce.start set backend_start = backend_start - interval '1 hour' where epoch = 2")
    assert take(desk, frozen(desk.clerk)).epoch == 3


@pytest.mark.parametrize("chunk_rows", [1, 3, 7])
def test_a_run_that_is_asked_to_stop_ends_between_two_chunks_and_goes_on_later(desk: Desk, chunk_rows: int) -> None:
    """L6, Q39, Q43: what is committed stays, the start is released, progress strictly grows, nothing is done twice."""
    path, lines = desk.csv(ROWS), [0]
    finished = False
    while not finished:
        observer = Watching()
        with contextlib.suppress(Interrupted):
            report = desk.run(path, chunk_rows=chunk_rows, observer=observer, interrupted=_after_one(observer))
            finished = True
            continue
        assert desk.one("select ended_how from pgonce.start order by epoch desc limit 1") == "stopped: Interrupted"
        lines.append(desk.positions()[-1][2])
        assert lines[-1] > lines[-2]
    assert report.run.applied.rows == 20
    assert sum(desk.effects().values()) == 210


def _after_one(observer: Watching) -> Callable[[], bool]:
    return lambda: len(observer.steps) > 0


def test_a_whole_input_that_is_asked_to_stop_applies_nothing(desk: Desk) -> None:
    """L6, E6: there is nothing between two chunks of one transaction."""
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        desk.run(desk.csv(ROWS), chunk_rows=5, checkpoint="all", interrupted=lambda: next(asked))
    assert (desk.effects(), desk.positions()) == ({}, [(1, 1, 0)])


def test_an_observer_that_fails_does_not_break_the_run(desk: Desk) -> None:
    """HOUSE, Q42: hooks cannot break a job."""

    def fail(_: int) -> None:
        raise RuntimeError("broken")

    assert desk.run(desk.csv(ROWS), chunk_rows=3, observer=Watching(fail)).exit_code == 0


def reset(desk: Desk, columns: tuple[object, ...]) -> None:
    """Put the database back to where it was when ``columns`` was the start's row: newer rows were never there."""
    lines = columns[1]
    desk.forget(f"e.line > {lines}")
    desk.sql("delete from pgonce.finding where line > %s", lines)
    desk.sql(
        """update pgonce.start
        set position = %s, lines = %s, digest = %s, chunks = %s, rows_read = %s, cents_read = %s""",
        *columns,
    )


POSITION = "select position, lines, digest, chunks, rows_read, cents_read from pgonce.start"


@pytest.mark.parametrize("lost_after", [2, 3, 4])
def test_acknowledged_commits_that_are_gone_are_noticed_and_done_again(desk: Desk, lost_after: int) -> None:
    """E8: the position moves by compare-and-set on what was last seen committed; it goes on from what is stored."""
    earlier: list[tuple[object, ...]] = []

    def lose(count: int) -> None:
        if count == 1:
            earlier.extend(desk.sql(POSITION))
        if count == lost_after:
            reset(desk, earlier[0])

    observer = Watching(lose)
    rows = [*ROWS[:7], ("", 1, ""), *ROWS[7:]]
    report = desk.run(desk.csv(rows), chunk_rows=3, observer=observer)
    assert desk.effects() == {str(number): number for number, _, _ in ROWS}
    assert (report.run.applied.rows, report.run.rejected.rows, report.run.read.rows) == (20, 1, 21)
    assert report.run.balanced
    assert len(observer.steps) == 8 + lost_after - 1


def test_a_start_that_the_database_has_forgotten_stops(desk: Desk) -> None:
    """E8: after a restore to before the start there is nothing to go on from; the same command begins anew."""

    def lose(count: int) -> None:
        if count == 2:
            desk.sql("delete from pgonce.start")

    with pytest.raises(LeaseLost, match="lost acknowledged commits"):
        desk.run(desk.csv(ROWS), chunk_rows=3, observer=Watching(lose))
    assert len(desk.effects()) == 6


def test_a_start_does_not_finish_a_run_that_was_taken_over(desk: Desk) -> None:
    """E8, L2: the finish carries the epoch too."""
    gate = Gate(1)
    path = desk.csv(ROWS)
    with in_thread(desk.run, path, clerk=desk.make_clerk(), observer=Watching(gate)) as first:
        assert gate.reached.wait(30)
        second = take(desk, desk.clerk, take_over=True)
        gate.opened.set()
        with pytest.raises(LeaseLost, match="taken over before it was finished"):
            first.result(timeout=30)
        release(desk.clerk, second, "test")
    assert desk.one("select finished_at from pgonce.run") is None
    assert desk.run(path).run.applied.rows == 20


def test_resume_refuses_to_skip_bytes_that_changed(desk: Desk) -> None:
    """F2: what lies before the stored position has to be what was settled."""
    path, asked = desk.csv(ROWS), iter([False, True])
    with pytest.raises(Interrupted):
        desk.run(path, chunk_rows=5, interrupted=lambda: next(asked))
    desk.sql("update pgonce.start set digest = repeat('0', 64)")
    with pytest.raises(InputChanged, match="not those that were already taken"):
        desk.run(path)
    assert len(desk.effects()) == 5
