"""A chunk that fails for a reason in its rows is taken apart: good rows are applied once, bad ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from database.jobs import Desk, Watching, frozen
from pgonce.engine import settle
from pgonce.errors import EffectFailed, Retryable

# No key at all: a row that is written twice shows.
LOG = "create table log (at bigint generated always as identity, event_id text, cents bigint)"
WRITE = "insert into log (event_id, cents) select event_id, amount_cents from chunk"

SIZES = [1, 2, 4, 7, 1000]


def logged(desk: Desk) -> list[tuple[str, int]]:
    """Return what the effect wrote, in its order."""
    return desk.sql("select event_id, cents from log order by at")


def input_of(desk: Desk, count: int, bad: set[int]) -> Path:
    """Write rows 1 to count; a bad one has the note `bad`."""
    return desk.csv([(number, number, "bad" if number in bad else "ok") for number in range(1, count + 1)])


@pytest.mark.parametrize("chunk_rows", SIZES)
@pytest.mark.parametrize("bad", [{2}, {1}, {5}, {3}, {1, 2, 3, 4, 5}, {2, 4}])
def test_good_rows_are_applied_once_and_bad_ones_failed(desk: Desk, chunk_rows: int, bad: set[int]) -> None:
    """E7, R14, R15, Q32, Q34: an effect table without a unique key has each good row exactly once."""
    desk.sql(LOG + "; alter table log add check (cents < 100)")
    effect = "insert into log (event_id, cents) select event_id, case note when 'bad' then 100 else 1 end from chunk"
    report = desk.run(input_of(desk, 5, bad), effect=effect, chunk_rows=chunk_rows)
    good = [str(number) for number in range(1, 6) if number not in bad]
    assert logged(desk) == [(event_id, 1) for event_id in good]
    assert desk.statuses() == {str(n): "failed" if n in bad else "completed" for n in range(1, 6)}
    assert (report.run.applied.rows, report.run.failed.rows) == (len(good), len(bad))
    assert report.run.balanced
    assert report.exit_code == 1
    desk.sound()


def test_the_reason_of_a_failed_row_is_kept_with_its_sqlstate_and_place(desk: Desk) -> None:
    """E7: the server's own words, the SQLSTATE, and the statement's line in the user's file."""
    desk.sql(LOG)
    effect = "select 1;\n\ninsert into log (event_id, cents) select event_id, 1 / (amount_cents - 2) from chunk"
    desk.run(input_of(desk, 3, set()), effect=effect)
    error = desk.one("select error from pgonce.event where status = 'failed'")
    assert error == "division by zero [22012] in the statement at line 3 of effect.sql"


def test_a_deferred_constraint_that_fails_at_commit_is_bisected_and_nothing_is_completed_falsely(desk: Desk) -> None:
    """Q38, R11, E7: COMMIT answered with an error is a certain abort, and its rows are to blame."""
    desk.sql("create table account (id text primary key); insert into account values ('a'), ('b')")
    desk.sql(LOG + "; alter table log add foreign key (event_id) references account deferrable initially deferred")
    desk.run(desk.csv([("a", 1, ""), ("ghost", 2, ""), ("b", 3, "")]), effect=WRITE)
    assert logged(desk) == [("a", 1), ("b", 3)]
    assert desk.statuses() == {"a": "completed", "b": "completed", "ghost": "failed"}
    assert "23503" in desk.one("select error from pgonce.event where status = 'failed'")
    desk.sound()


TRY_LATER = """
create function try_later() returns trigger language plpgsql as $$
begin
    if exists (select from closed as c where c.event_id = new.event_id) then
        raise exception 'the account is busy' using errcode = '40001';
    end if;
    return new;
end $$;
create table closed (event_id text);
create trigger t before insert on log for each row execute function try_later()
"""


@pytest.mark.parametrize("chunk_rows", [1, 3, 1000])
def test_an_exhausted_row_stays_pending_with_its_attempts_and_the_next_start_applies_it(
    desk: Desk, chunk_rows: int
) -> None:
    """E7, R4, R49, Q35, Q51: others are applied; the event is kept with payload, attempts and error; exit code 75."""
    desk.sql(LOG)
    desk.sql(TRY_LATER)
    desk.sql("insert into closed values ('2')")
    path, observer = input_of(desk, 4, set()), Watching()
    report = desk.run(path, effect=WRITE, chunk_rows=chunk_rows, observer=observer)
    assert report.exit_code == 75
    assert (report.run.pending.rows, report.run.applied.rows) == (1, 3)
    assert report.run.balanced
    assert set(observer.retries) == {"40001"}
    [(status, attempts, payload, error)] = desk.sql(
        "select status, attempts, payload, error from pgonce.event where event_id = '2'"
    )
    assert (status, attempts, payload) == ("pending", 3, '["ok"]')
    assert "the account is busy [40001]" in error
    desk.sql("delete from closed")
    again = desk.run(path, effect=WRITE, chunk_rows=chunk_rows)
    assert (again.exit_code, again.start.applied.rows, again.start.already.rows) == (0, 1, 3)
    assert sorted(logged(desk)) == [("1", 1), ("2", 2), ("3", 3), ("4", 4)]
    assert desk.run(path, effect=WRITE).shortcut
    desk.sound()


def test_an_event_whose_budget_is_used_up_stays_pending_and_is_not_tried_again(desk: Desk) -> None:
    """R4, R61, Q15: 9 attempts over all starts by default; then it needs a grant, and says why it waits."""
    desk.sql(LOG)
    desk.sql(TRY_LATER)
    desk.sql("insert into closed values ('2')")
    path = input_of(desk, 3, set())
    seen = []
    for _ in range(4):
        observer = Watching()
        report = desk.run(path, effect=WRITE, observer=observer)
        assert report.exit_code == 75
        seen.append((desk.one("select attempts from pgonce.event where event_id = '2'"), len(observer.retries) > 0))
    assert seen == [(3, True), (6, True), (9, True), (9, False)]
    assert "busy" in desk.one("select error from pgonce.event where event_id = '2'")
    desk.sql("delete from closed; update pgonce.job set attempt_budget = 12")
    assert desk.run(path, effect=WRITE).exit_code == 0
    assert sorted(logged(desk)) == [("1", 1), ("2", 2), ("3", 3)]


def test_a_pending_row_that_turns_out_bad_becomes_failed(desk: Desk) -> None:
    """E7, I7: a later start may find a reason that is final; the attempts add up."""
    desk.sql(LOG)
    desk.sql(TRY_LATER)
    desk.sql("insert into closed values ('2')")
    path = input_of(desk, 3, set())
    desk.run(path, effect=WRITE)
    desk.sql("delete from closed; alter table log add check (cents <> 2)")
    report = desk.run(path, effect=WRITE)
    assert desk.sql("select status, attempts from pgonce.event where event_id = '2'") == [("failed", 4)]
    assert (report.exit_code, report.run.failed.rows, report.run.pending.rows) == (1, 1, 0)
    assert report.run.balanced


def test_a_duplicate_of_a_pending_row_does_not_keep_the_run_pending_for_ever(desk: Desk) -> None:
    """R4, F2, L4: once the event is completed, the same command again ends with 0, also where a second row names it."""
    desk.sql(LOG)
    desk.sql(TRY_LATER)
    desk.sql("insert into closed values ('2')")
    path = desk.csv([(1, 1, ""), (2, 2, ""), (2, 2, "")])
    assert desk.run(path, effect=WRITE, chunk_rows=1).exit_code == 75
    desk.sql("delete from closed")
    report = desk.run(path, effect=WRITE, chunk_rows=1)
    assert sorted(logged(desk)) == [("1", 1), ("2", 2)]
    assert (report.run.pending.rows, report.exit_code) == (0, 0)
    assert report.run.balanced


def test_a_limit_bounds_how_many_events_one_start_refuses(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: when more rows than that fail, the fault is in the effect; the run stops with the position before the row."""
    monkeypatch.setattr(settle, "REFUSED_EVENTS_MAX", 3)
    desk.sql(LOG + "; alter table log add check (cents < 3)")
    path = input_of(desk, 10, set())
    with pytest.raises(Retryable, match=r"more than 3 events were refused.*stopped before line 7"):
        desk.run(path, effect=WRITE, chunk_rows=4)
    assert desk.statuses() == {"1": "completed", "2": "completed", "3": "failed", "4": "failed", "5": "failed"}
    assert desk.positions() == [(1, 1, 6)]
    desk.sql("alter table log drop constraint log_cents_check")
    desk.run(path, effect=WRITE)
    assert len(logged(desk)) == 7


@pytest.mark.parametrize(
    ("effect", "sqlstate"),
    [("insert into nowhere select 1", "42P01"), ("insert into log (event_id) select account from chunk", "42703")],
)
def test_a_fault_that_is_not_in_the_rows_stops_the_run_with_the_position_before_it(
    desk: Desk, effect: str, sqlstate: str
) -> None:
    """E7, Q31, Q36, R13: wrong SQL marks no row failed; what is committed stays; the run goes on from there."""
    desk.sql(LOG)
    with pytest.raises(EffectFailed) as caught:
        desk.run(input_of(desk, 6, set()), effect=effect, chunk_rows=2)
    assert caught.value.sqlstate == sqlstate
    assert desk.statuses() == {}
    assert desk.positions() == [(1, 1, 0)]
    assert desk.one("select ended_how from pgonce.start") == "stopped: EffectFailed"


def test_a_failure_in_a_later_chunk_leaves_the_position_at_the_last_commit(desk: Desk) -> None:
    """Q31, Q40, R13, R18: chunk k fails, the stored position is that of k-1; after the repair nothing is missing."""
    desk.sql(LOG)
    path = input_of(desk, 7, set())

    def drop_after_two(count: int) -> None:
        if count == 2:
            desk.sql("alter table log rename to gone")

    with pytest.raises(EffectFailed):
        desk.run(path, effect=WRITE, chunk_rows=2, observer=Watching(drop_after_two))
    assert desk.positions() == [(1, 1, 5)]
    assert len(desk.effects()) == 4
    desk.sql("alter table gone rename to log")
    report = desk.run(path, effect=WRITE, chunk_rows=2)
    assert logged(desk) == [(str(number), number) for number in range(1, 8)]
    assert (report.start.read.rows, report.run.read.rows, report.run.applied.rows) == (3, 7, 7)
    assert desk.positions() == [(1, 1, 5), (1, 2, 8)]


def test_a_lock_that_is_not_available_burns_no_attempt_and_is_bounded_by_the_deadline(desk: Desk) -> None:
    """R1, R2: 55P03 says that somebody else works; when the time is up the run stops and no row is to blame."""
    desk.sql(LOG)
    effect = WRITE + "; do $$ begin raise exception 'busy' using errcode = '55P03'; end $$"
    observer = Watching()
    with pytest.raises(Retryable, match="Its time was used up"):
        desk.run(
            input_of(desk, 2, set()), effect=effect, chunk_deadline_s=5.0, clerk=frozen(desk.clerk), observer=observer
        )
    assert len(observer.retries) > 3
    assert desk.statuses() == {}
    assert logged(desk) == []


def test_nothing_of_a_failure_before_commit_is_left(desk: Desk) -> None:
    """E1, Q57: the effect, the ledger, the event and the position are one transaction."""
    desk.sql(LOG)
    effect = WRITE + "; select 1 from nowhere"
    with pytest.raises(EffectFailed):
        desk.run(input_of(desk, 3, set()), effect=effect)
    assert logged(desk) == []
    assert desk.effects() == {}
    assert desk.positions() == [(1, 1, 0)]


def test_a_row_without_an_event_is_never_blamed_for_a_failing_chunk(desk: Desk) -> None:
    """E7: findings are written beside the others; a rejected row alone in its chunk cannot fail by the effect."""
    desk.sql(LOG + "; alter table log add check (cents < 100)")
    report = desk.run(desk.csv([("", 1, ""), (1, 500, ""), ("", 2, ""), (2, 3, "")]), effect=WRITE)
    assert (report.run.rejected.rows, report.run.failed.rows, report.run.applied.rows) == (2, 1, 1)
    assert [line for line, _, _ in desk.findings()] == [2, 4]


def test_counts_come_from_committed_rows_only(desk: Desk) -> None:
    """R12: what was rolled back on the way is in no count, whatever the number of halvings."""
    desk.sql(LOG + "; alter table log add check (cents <> 6)")
    observer = Watching()
    report = desk.run(input_of(desk, 9, set()), effect=WRITE, observer=observer)
    assert sum(step.rows for step in observer.steps) == 9
    assert sum(step.applied for step in observer.steps) == report.run.applied.rows == 8
    assert report.run.read.rows == 9
