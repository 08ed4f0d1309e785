"""Attempts over all starts are bounded by the job's budget; a grant of more is on record, and the next run uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from database.jobs import Desk, Watching, in_thread, make_order, soon, until_blocked
from pgonce.db.failure import CommitInDoubt
from pgonce.engine import retry
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.events import get_event
from pgonce.engine.plan import plan
from pgonce.engine.reconcile import reconcile
from pgonce.engine.retry import grant_used_up, reopen_failed, retry_events
from pgonce.errors import ConfigurationError, EventNotFound
from pgonce.sources import open_input

# An effect that is "not now" for the ids in `closed`, and a log without a key, in which a second write shows.
SCHEMA = """
create table log (at bigint generated always as identity, event_id text, cents bigint);
create table closed (event_id text);
create table tries (event_id text);
create function not_now() returns trigger language plpgsql as $$
begin
    if exists (select from closed as c where c.event_id = new.event_id) then
        raise exception 'the account is busy' using errcode = '40001';
    end if;
    return new;
end $$;
create trigger t before insert on log for each row execute function not_now()
"""
WRITE = "insert into log (event_id, cents) select event_id, amount_cents from chunk"
GRANTS = (
    "select event_id, step, old_attempts, granted, why from pgonce.event_history where action = 'granted' order by 1, 2"
)


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """Give a desk on which the events 2 and 4 cannot be applied now."""
    desk.sql(SCHEMA)
    desk.sql("insert into closed values ('2'), ('4')")
    return desk


def five(desk: Desk) -> Path:
    """Write an input of five rows."""
    return desk.csv([(n, n, "") for n in range(1, 6)], name="five.csv")


def tries(desk: Desk, path: Path, **options: Any) -> int:
    """Run once more; return how many transactions failed in it and were tried again or given up."""
    observer = Watching()
    desk.run(path, effect=WRITE, observer=observer, **options)
    return len(observer.retries)


def attempts(desk: Desk, event_id: str = "2") -> tuple[int, int | None]:
    """Return how often an event was tried, and how many attempts it was granted."""
    [(used, granted)] = desk.sql("select attempts, granted from pgonce.event where event_id = %s", event_id)
    return used, granted


def use_up(desk: Desk, path: Path) -> None:
    """Run until the budget of the events that are not to be applied is used up."""
    for _ in range(3):
        desk.run(path, effect=WRITE)
    assert attempts(desk) == (9, None)


def applied_once(desk: Desk) -> None:
    """Check that every event is applied, once, and the books balance."""
    assert sorted(desk.sql("select event_id, cents from log")) == [(str(n), n) for n in range(1, 6)]
    assert set(desk.statuses().values()) == {"completed"}
    assert reconcile(desk.clerk).balanced
    desk.sound()


@pytest.mark.parametrize("chunk_rows", [1, 100])
@pytest.mark.parametrize(
    ("limit", "seen"),
    [(1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), (4, [4, 8, 9, 9]), (11, [9, 9])],
)
def test_attempts_over_all_starts_never_exceed_the_budget(
    busy: Desk, limit: int, seen: list[int], chunk_rows: int
) -> None:
    """R4, R1: each start may use its own, all of them together nine; a start is cut short rather than over-run."""
    path, found = five(busy), []
    for _ in seen:
        report = busy.run(path, effect=WRITE, attempts=limit, chunk_rows=chunk_rows)
        assert (report.exit_code, report.run.pending.rows) == (75, 2)
        found.append(attempts(busy)[0])
        assert report.used_up == (2 if found[-1] == 9 else 0)
    assert found == seen
    assert attempts(busy, "4") == (9, None)
    assert tries(busy, path) == 0
    assert report.run.balanced


def test_a_budget_below_the_attempts_of_a_start_is_kept(busy: Desk) -> None:
    """R4: also the very first start over an event may not exceed the job's budget."""
    busy.run(busy.csv([(1, 1, "")]), effect=WRITE)
    busy.sql("update pgonce.job set attempt_budget = 2")
    assert busy.run(busy.csv([(2, 2, "")]), effect=WRITE).used_up == 1
    assert attempts(busy) == (2, None)


def test_a_grant_is_used_by_the_same_command_and_by_whoever_runs_it(busy: Desk) -> None:
    """R4, F2: granted attempts are tried by the next start over the same input, and only so many; then it waits."""
    path = five(busy)
    use_up(busy, path)
    given = grant_used_up(busy.clerk, "pay", why="the bank is open again", budget=2)
    assert (given.granted, given.budget, given.waiting) == (2, 2, 2)
    assert attempts(busy) == (9, 2)
    assert busy.sql(GRANTS) == [("2", 1, 9, 2, "the bank is open again"), ("4", 1, 9, 2, "the bank is open again")]
    assert busy.one("select touched from pgonce.run")
    assert not busy.run(path, effect=WRITE).shortcut
    assert attempts(busy) == (11, 2)
    assert tries(busy, path) == 0
    grant_used_up(busy.clerk, "pay", why="once more", budget=5)
    assert attempts(busy) == (11, 7)
    busy.sql("delete from closed")
    report = busy.run(path, effect=WRITE, clerk=busy.make_clerk())
    assert (report.exit_code, report.start.applied.rows) == (0, 2)
    applied_once(busy)
    assert attempts(busy) == (12, 7)
    assert busy.run(path, effect=WRITE).shortcut


def test_a_second_identical_call_grants_nothing(busy: Desk) -> None:
    """A grant is for an event that has none left; doing it again says that there are some."""
    use_up(busy, five(busy))
    grant_used_up(busy.clerk, "pay", why="open again")
    before = busy.everything()
    again = grant_used_up(busy.clerk, "pay", why="open again")
    assert (again.granted, again.waiting) == (0, 2)
    named = retry_events(busy.clerk, "pay", ["2", "4"], why="open again")
    assert (named.granted, [event.action for event in named.events]) == (0, ["waiting", "waiting"])
    assert [event.attempts_left for event in named.events] == [3, 3]
    assert busy.everything() == before
    assert attempts(busy) == (9, 3)


def test_below_the_budget_there_is_nothing_to_grant(busy: Desk) -> None:
    """R4: an event with attempts left needs no grant, and gets none."""
    busy.run(five(busy), effect=WRITE)
    found = grant_used_up(busy.clerk, "pay", why="hurry")
    assert (found.granted, found.waiting) == (0, 2)
    assert busy.sql(GRANTS) == []


def test_an_overrun_budget_is_made_up_for_by_the_grant(busy: Desk) -> None:
    """Two starts at the same time, or a budget that was lowered, may leave more attempts than allowed; N more are N."""
    use_up(busy, five(busy))
    busy.sql("update pgonce.job set attempt_budget = 5")
    grant_used_up(busy.clerk, "pay", why="more", budget=3)
    assert attempts(busy) == (9, 7)
    found = retry_events(busy.clerk, "pay", ["2"], why="look")
    assert found.events[0].attempts_left == 3


def test_grants_can_be_narrowed_to_a_run_or_a_source(busy: Desk) -> None:
    """--run and --source: only those; a run of another job, or none, is not found."""
    path = five(busy)
    use_up(busy, path)
    other = busy.csv([("2", 2, "")], name="north.csv")
    for _ in range(3):
        busy.run(other, effect=WRITE, source="north")
    assert grant_used_up(busy.clerk, "pay", why="w", run_id=2).granted == 1
    assert grant_used_up(busy.clerk, "pay", why="w", source="north").granted == 0
    assert grant_used_up(busy.clerk, "pay", why="w", source="").granted == 2
    assert busy.sql("select source, event_id from pgonce.event_history where action = 'granted' order by 1, 2") == [
        ("", "2"), ("", "4"), ("north", "2")
    ]  # fmt: skip
    assert grant_used_up(busy.clerk, None, why="w", run_id=1).scope.job == "pay"
    for job, run_id in (("pay", 99), (None, 99)):
        with pytest.raises(EventNotFound, match="there is no run 99"):
            grant_used_up(busy.clerk, job, why="w", run_id=run_id)


def test_the_job_may_be_left_out_where_there_is_one(busy: Desk) -> None:
    """--job is needed only where several could be meant; a run names its own."""
    with pytest.raises(ConfigurationError, match="name the job with --job; there is none"):
        grant_used_up(busy.clerk, None, why="w")
    use_up(busy, five(busy))
    assert grant_used_up(busy.clerk, None, why="w").scope.job == "pay"
    busy.run(busy.csv([("x", -1, "")]), order=make_order("other"))
    with pytest.raises(ConfigurationError, match="there are 2: 'other', 'pay'"):
        reopen_failed(busy.clerk, None, why="w")
    assert reopen_failed(busy.clerk, None, why="w", run_id=2).reopened == 1
    with pytest.raises(EventNotFound, match="no run 2 of job 'pay'"):
        reopen_failed(busy.clerk, "pay", why="w", run_id=2)


def test_named_events_get_what_each_needs(busy: Desk) -> None:
    """IDs: a failed one is reopened, a used-up one granted, a completed one told so; all on record."""
    path = five(busy)
    busy.sql("alter table log add check (cents <> 3)")
    use_up(busy, path)
    found = retry_events(busy.clerk, "pay", ["3", "2", "1", "3"], why="mended", budget=4)
    assert [(e.event_id, e.action, e.status, e.attempts_left) for e in found.events] == [
        ("3", "reopened", "pending", 9),
        ("2", "granted", "pending", 4),
        ("1", "final", "completed", 0),
    ]
    assert (found.granted, found.reopened, found.waiting) == (1, 1, 2)
    assert attempts(busy) == (9, 4)
    history = busy.clerk.do(lambda transaction: get_event(transaction, "pay", "2"), commit=False).history
    assert [(step.action, step.granted, step.why, step.old_attempts) for step in history] == [
        ("granted", 4, "mended", 9)
    ]
    busy.sql("delete from closed; alter table log drop constraint log_cents_check")
    assert busy.run(path, effect=WRITE).used_up == 1
    assert retry_events(busy.clerk, "pay", ["4"], why="it too").granted == 1
    assert busy.run(path, effect=WRITE).exit_code == 0
    applied_once(busy)
    assert retry_events(busy.clerk, "pay", ["2"], why="mended").waiting == 0


def test_one_id_that_is_not_stored_leaves_all_as_they_are(busy: Desk) -> None:
    """A typo in a list changes nothing at all."""
    use_up(busy, five(busy))
    before = busy.everything()
    with pytest.raises(EventNotFound, match="no event 'nope'"):
        retry_events(busy.clerk, "pay", ["2", "nope"], why="w")
    assert busy.everything() == before
    for budget in (0, -1, 1001):
        with pytest.raises(ConfigurationError, match="from 1 to 1000 attempts"):
            retry_events(busy.clerk, "pay", ["2"], why="w", budget=budget)
    for why in ("", " ", "x" * 5000):
        with pytest.raises(ConfigurationError, match="say why"):
            grant_used_up(busy.clerk, "pay", why=why)


def test_reopening_takes_the_grants_back(busy: Desk) -> None:
    """A reopened event begins anew with the job's budget; what was granted before stays in its history."""
    path = five(busy)
    use_up(busy, path)
    retry_events(busy.clerk, "pay", ["2"], why="one more", budget=1)
    busy.sql("delete from closed; alter table log add check (cents <> 2)")
    assert busy.run(path, effect=WRITE).run.failed.rows == 1
    assert attempts(busy) == (10, 1)
    assert reopen_failed(busy.clerk, "pay", why="mended").reopened == 1
    assert attempts(busy) == (0, None)
    assert busy.sql(GRANTS)[0][3] == 1


def test_plan_foresees_a_granted_event(busy: Desk) -> None:
    """The plan counts a used-up event as pending and a granted one as applied."""
    path = five(busy)
    use_up(busy, path)

    def applied() -> int:
        with open_input(path) as source:
            foreseen = plan(busy.clerk, source, make_order(effect=WRITE), findings_max=9, interrupted=lambda: False)
        return foreseen.start.applied.rows

    assert applied() == 0
    grant_used_up(busy.clerk, "pay", why="open")
    assert applied() == 2


def test_any_number_is_granted_in_small_transactions(busy: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are held for a moment; the count is that of the history."""
    monkeypatch.setattr(retry, "CHANGED_AT_A_TIME", 2)
    busy.sql("insert into closed select n::text from generate_series(1, 5) as n where n not in (2, 4)")
    use_up(busy, five(busy))
    assert grant_used_up(busy.clerk, "pay", why="all").granted == 5
    assert len(busy.sql(GRANTS)) == 5


@contextmanager
def losing_answers(clerk: Clerk, *, commits: bool, then: Callable[[], object] = lambda: None) -> Iterator[list[int]]:
    """Lose the answer of the next COMMIT, which took place or not; then the world goes on before it is looked up."""
    session, lost = clerk.session, [0]
    original = session._commit

    def lose(connection: Any) -> None:
        session._commit = original
        if commits:
            original(connection)
        session.close()
        lost[0] += 1
        then()
        raise CommitInDoubt("the answer to COMMIT was lost")

    session._commit = lose
    yield lost
    assert lost == [1]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("by_id", [True, False])
def test_a_grant_whose_commit_is_in_doubt_is_given_once(busy: Desk, commits: bool, by_id: bool) -> None:
    """R3: done again, it finds its own step in the history, even if a run has used the attempts up meanwhile."""
    path = five(busy)
    use_up(busy, path)

    def meanwhile() -> None:
        busy.run(path, effect=WRITE, clerk=busy.make_clerk())

    with losing_answers(busy.clerk, commits=commits, then=meanwhile):
        if by_id:
            found = retry_events(busy.clerk, "pay", ["2", "4"], why="open", budget=2)
            assert [event.action for event in found.events] == ["granted", "granted"]
        else:
            found = grant_used_up(busy.clerk, "pay", why="open", budget=2)
    assert found.granted == 2
    assert [(row[0], row[3]) for row in busy.sql(GRANTS)] == [("2", 2), ("4", 2)]
    assert attempts(busy) == ((11, 2) if commits else (9, 2))


def test_a_grant_waits_for_a_run_that_holds_the_event(busy: Desk) -> None:
    """E4: the event is locked, then looked at: what the run did to it meanwhile decides."""
    use_up(busy, five(busy))
    other = busy.make_clerk()
    with other.session.transaction(soon(other)) as transaction:
        transaction.rows("lock_events", job="pay", sources=["", ""], event_ids=["2", "4"])
        pid = transaction.connection.info.backend_pid
        with in_thread(grant_used_up, busy.clerk, "pay", why="open") as granting:
            until_blocked(busy, pid)
            transaction.connection.execute("update pgonce.event set attempts = 3 where event_id = '2'")
            transaction.connection.execute("commit")
            transaction.connection.execute("begin")
            assert granting.result(timeout=30).granted == 1
    assert [row[0] for row in busy.sql(GRANTS)] == ["4"]
