"""What became of a COMMIT whose answer was lost is said later, for certain, and nothing is written for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from database.jobs import Desk, Watching, clerk_on, in_thread, until, until_blocked
from database.test_in_doubt import LOG, WRITE, lost_inside_commit, right
from pgonce.db.connect import Target
from pgonce.engine import doubt
from pgonce.engine.amend import Amendment, amend
from pgonce.engine.resolve import Question, Resolved, resolve
from pgonce.errors import ConfigurationError, EventNotFound, OutcomeUnknown, PgonceError, SchemaMismatch, Unreachable


@pytest.fixture
def logged(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Give a desk with a table that shows a second write, and a run that gives up on its doubts soon."""
    monkeypatch.setattr(doubt, "LOOK_S_MIN", 0.3)
    monkeypatch.setattr(doubt, "SLICE_S", 0.1)
    desk.sql(LOG)
    return desk


def ask(desk: Desk, run_id: int | None = None, **options: int | float) -> list[Resolved]:
    """Ask with a clerk of its own, and see that nothing was written."""
    before = desk.everything(), desk.sql("select t::text from pgonce.start as t order by 1")
    clerk = desk.make_clerk()
    found = resolve(clerk, Question(run_id=run_id, **options))
    assert (desk.everything(), desk.sql("select t::text from pgonce.start as t order by 1")) == before
    return found


def gone(desk: Desk, pid: int) -> None:
    """Wait until a backend has ended."""
    until(lambda: not desk.sql("select 1 from pg_stat_activity where pid = %s", pid), f"the end of backend {pid}")


@pytest.mark.parametrize("ends", ["committed", "aborted"])
def test_a_doubt_is_waited_for_and_then_told_for_certain(logged: Desk, ends: str) -> None:
    """R3, FAILURES 2.2: while the COMMIT goes on it is unknown and named who holds it; then it is the truth."""
    with lost_inside_commit(logged, chunk_deadline_s=2.0) as (run, old, gate):
        with pytest.raises(OutcomeUnknown, match="pgonce resolve 1 --start 1 --chunk 2"):
            run.result(timeout=30)
        [unknown] = ask(logged, 1, chunk=2, deadline_s=0.4)
        assert (unknown.state, unknown.established, unknown.committed) == ("unknown", False, None)
        assert f"pg_terminate_backend({old})" in unknown.next
        with in_thread(resolve, logged.make_clerk(), Question(deadline_s=30.0)) as asking:
            until_blocked(logged, old)
            assert not asking.done()
            if ends == "aborted":
                logged.sql("select pg_terminate_backend(%s)", old)
            gate.execute("select pg_advisory_unlock(1)")
            [found] = asking.result(timeout=30)
        gone(logged, old)
    lines = 7 if ends == "committed" else 4
    assert (found.run_id, found.epoch, found.lines, found.chunks) == (1, 1, lines, 1 + (ends == "committed"))
    [told] = ask(logged, 1, epoch=1, chunk=2)
    assert (told.state, told.committed, told.finished) == ("gone", ends == "committed", False)
    assert ask(logged, 1, chunk=1)[0].committed
    assert not ask(logged, 1, chunk=3)[0].committed
    assert "run the same command again" in told.next
    logged.run(logged.folder / "in.csv", effect=WRITE, chunk_rows=3)
    right(logged)
    [later] = ask(logged, 1, epoch=1, chunk=2)
    assert (later.state, later.committed, later.finished) == ("ended", ends == "committed", True)
    assert "start 2 went on from there" in later.next
    [newest] = ask(logged, 1)
    assert (newest.epoch, newest.state, newest.ended_how, newest.lines) == (2, "ended", "finished", 8)
    assert "nothing; the run is finished" in newest.next
    assert ask(logged) == []


def test_a_run_at_work_is_told_as_such_and_not_disturbed(logged: Desk) -> None:
    """A live start goes on: the lock on its row is held for a moment only."""
    path = logged.csv([(n, n, "") for n in range(1, 7)])
    seen: list[Resolved] = []

    def look(count: int) -> None:
        seen.extend(resolve(clerk, Question(deadline_s=5.0)))

    clerk = logged.make_clerk()
    report = logged.run(path, effect=WRITE, chunk_rows=2, observer=Watching(look))
    assert report.run.applied.rows == 6
    assert [(one.state, one.lines, one.chunks) for one in seen[:3]] == [
        ("running", 3, 1),
        ("running", 5, 2),
        ("running", 7, 3),
    ]
    assert "is at work" in seen[0].next


def test_a_prepared_transaction_that_holds_the_row_is_named(logged: Desk) -> None:
    """FAILURES 2.4: an orphan keeps the row locked until somebody ends it; it is said which."""
    logged.run(logged.csv([(1, 1, "")]))
    with psycopg.connect(logged.dsn) as connection:
        connection.execute("update pgonce.start set moved_at = moved_at")
        connection.execute("prepare transaction 'orphan'")
    try:
        [unknown] = resolve(logged.make_clerk(), Question(run_id=1, deadline_s=0.3))
        assert "the prepared transaction 'orphan'" in unknown.next
    finally:
        with psycopg.connect(logged.dsn, autocommit=True) as connection:
            connection.execute("rollback prepared 'orphan'")
    assert ask(logged, 1)[0].established


def test_a_start_that_is_not_stored_is_told(logged: Desk) -> None:
    """After a restore a start may be gone with all it did; a run may have none yet."""
    logged.run(logged.csv([(1, 1, "")]))
    [missing] = ask(logged, 1, epoch=9, chunk=1)
    assert (missing.state, missing.committed) == ("missing", False)
    assert "failover or restore" in missing.next
    logged.sql("update pgonce.run set epoch = 0; delete from pgonce.start")
    [registered] = ask(logged, 1)
    assert (registered.state, registered.epoch) == ("registered", 0)
    assert "no start of the run was begun" in registered.next


def test_what_cannot_be_asked_is_refused(logged: Desk) -> None:
    """A run that is not there is not found; numbers have their limits."""
    with pytest.raises(EventNotFound, match="there is no run 7"):
        ask(logged, 7)
    for options in ({"deadline_s": 0}, {"deadline_s": float("inf")}, {"epoch": 1}, {"chunk": 1}):
        with pytest.raises(ConfigurationError):
            Question(**options)
    with pytest.raises(ConfigurationError, match="--chunk 0"):
        Question(run_id=1, chunk=0)


def test_a_database_that_is_away_or_not_ours_is_told_as_such(logged: Desk, tmp_path: Path) -> None:
    """No connection is no answer about a run; a missing schema neither."""
    with pytest.raises(Unreachable):
        resolve(clerk_on(f"host={tmp_path} port=1 dbname=x connect_timeout=1"), Question(deadline_s=0.2))
    logged.sql("alter schema pgonce rename to elsewhere")
    with pytest.raises(SchemaMismatch):
        resolve(logged.make_clerk(), Question(deadline_s=0.2))


def test_a_standby_is_no_answer(logged: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES 2.2: what a server in recovery says is not final; it is waited for a primary, and then unknown."""
    from pgonce.db import failure, session

    def on_standby(_transaction: object, _deadline: object, _label: str) -> None:
        raise failure.standby("test server")

    monkeypatch.setattr(session, "bound", on_standby)
    with pytest.raises(OutcomeUnknown, match="could not be read on a primary"):
        resolve(logged.make_clerk(), Question(deadline_s=0.3))


def test_what_is_in_doubt_beside_the_chunks_names_its_run_too(logged: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: also for the transaction that finishes a run: whoever is told of an unknown outcome knows what to ask."""
    from pgonce.db.failure import CommitInDoubt
    from pgonce.engine.bookkeeping import Clerk

    clerk = logged.make_clerk()
    original = clerk.session._commit
    count = [0]

    def lose(connection: object) -> None:
        count[0] += 1
        if count[0] < 4:
            original(connection)
            return
        clerk.session.close()
        raise CommitInDoubt("the answer to COMMIT was lost")

    clerk.session._commit = lose
    short = Clerk(
        session=clerk.session, clock=clerk.clock, sleep=clerk.sleep, random=clerk.random, backoff=clerk.backoff,
        patience_s=0.2,
    )  # fmt: skip
    with pytest.raises(PgonceError, match="pgonce resolve 1") as unknown:
        logged.run(logged.csv([(1, 1, "")]), clerk=short)
    assert isinstance(unknown.value, OutcomeUnknown)
    [found] = ask(logged)
    assert (found.run_id, found.chunks, found.finished) == (1, 1, False)


@pytest.mark.parametrize("then", ["gone", "held"])
def test_a_doubt_is_not_forgotten_when_the_next_try_does_not_even_begin(logged: Desk, then: str) -> None:
    """R3, R4: told "nothing was applied", somebody would amend or grant once more."""
    from pgonce.db.failure import CommitInDoubt

    logged.run(logged.csv([(1, -5, "")]))
    clerk = replace(logged.make_clerk(), patience_s=0.5)
    original = clerk.session._commit
    held: list[psycopg.Connection] = []

    def lose(connection: psycopg.Connection) -> None:
        original(connection)
        clerk.session._drop()
        if then == "gone":
            clerk.session.target = Target(conninfo=f"host={logged.folder} port=1 dbname=x", named_by="a test")
        else:
            held.append(psycopg.connect(logged.dsn))
            held[0].execute("lock table pgonce.event")
        raise CommitInDoubt("the answer to COMMIT was lost")

    clerk.session._commit = lose
    with pytest.raises(OutcomeUnknown, match="the answer to COMMIT was lost") as unknown:
        amend(clerk, "pay", "1", Amendment(amount="5"), why="sign")
    assert unknown.value.maybe_committed
    for connection in held:
        connection.close()
    assert logged.one("select amount_cents from pgonce.event") == 5
