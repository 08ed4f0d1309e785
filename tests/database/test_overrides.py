"""A job asks to have an error tried again that is final to everybody else; what is in doubt is never tried blindly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from database.jobs import Desk, Watching, frozen, make_order
from database.test_in_doubt import failing
from pgonce.api.database import opened
from pgonce.crashtest import boundary as at
from pgonce.engine.dryrun import rehearse
from pgonce.errors import EffectFailed, InvariantBroken
from pgonce.sources import open_input

LOG = """
create table account (id text primary key);
insert into account values ('1');
create table log (event_id text constraint log_account_fkey references account, cents bigint)
"""
WRITE = "insert into log (event_id, cents) select event_id, amount_cents from chunk"
BUSY = (
    "do $$ begin if exists (select from closed) then raise exception 'not now' using errcode = 'BUSY1'; end if;\n"
    f"end $$;\n{WRITE}"
)


class Mending(Watching):
    """An observer that mends the cause when the error was told so many times."""

    def __init__(self, mend: Callable[[], object], after: int) -> None:
        super().__init__()
        self.mend, self.after = mend, after

    def retried(self, sqlstate: str | None, reason: str) -> None:
        """Mend once it was told often enough."""
        super().retried(sqlstate, reason)
        if len(self.retries) == self.after:
            self.mend()


@pytest.fixture
def booked(desk: Desk) -> Desk:
    """Give a desk with a log that refers to accounts, of which one is not there yet."""
    desk.sql(LOG)
    desk.sql("create table closed (at timestamptz)")
    return desk


def two(desk: Desk) -> Path:
    """Write an input of two rows; the second one's account is not there."""
    return desk.csv([("1", 1, ""), ("2", 2, "")])


def open_account(desk: Desk) -> Callable[[], object]:
    """Give what makes the missing account."""
    return lambda: desk.sql("insert into account values ('2') on conflict do nothing")


@pytest.mark.parametrize("code", ["23503", "public.log_account_fkey"])
@pytest.mark.parametrize("checkpoint", ["chunk", "item", "all"])
def test_an_error_is_tried_again_by_its_code_or_its_constraint(booked: Desk, code: str, checkpoint: str) -> None:
    """R2: the row that is referred to comes a moment later; the chunk is tried again as a whole, and applied once."""
    observer = Mending(open_account(booked), after=1)
    report = booked.run(two(booked), effect=WRITE, checkpoint=checkpoint, retry_on={code: 1}, observer=observer)
    assert (report.exit_code, report.run.applied.rows, observer.retries) == (0, 2, ["23503"])
    assert sorted(booked.sql("select * from log")) == [("1", 1), ("2", 2)]
    booked.sound()


@pytest.mark.parametrize("retry_on", [{}, {"P0001": 2}, {"public.another_fkey": 2}, {"other.log_account_fkey": 2}])
def test_what_was_not_asked_for_is_final(booked: Desk, retry_on: dict[str, int]) -> None:
    """R2: the user's constraints are never tried again, unless it is this one that was asked for."""
    observer = Mending(open_account(booked), after=1)
    report = booked.run(two(booked), effect=WRITE, retry_on=retry_on, observer=observer)
    assert (report.exit_code, report.run.failed.rows, observer.retries) == (1, 1, [])


@pytest.mark.parametrize(
    ("times", "attempts", "tried"),
    [(1, 3, 1), (2, 5, 2), (2, 3, 2), (9, 3, 2), (9, 1, 0), (1, 1, 0)],
)
def test_it_is_tried_so_often_within_the_attempts_and_is_final_then(
    booked: Desk, times: int, attempts: int, tried: int
) -> None:
    """R1: N tries more, and never more attempts than a chunk has; then the row is failed as ever."""
    observer = Watching()
    path = booked.csv([("2", 2, "")])
    report = booked.run(path, effect=WRITE, attempts=attempts, retry_on={"23503": times}, observer=observer)
    assert (len(observer.retries), report.run.failed.rows) == (tried, 1)
    assert booked.one("select attempts from pgonce.event") == tried + 1
    assert report.run.balanced


def test_the_budget_over_all_starts_bounds_it_too(booked: Desk) -> None:
    """R4: an event alone has no more tries than its budget leaves it."""
    observer = Watching()
    booked.run(booked.csv([("1", 1, "")]), effect=WRITE)
    booked.sql("update pgonce.job set attempt_budget = 2")
    booked.run(booked.csv([("2", 2, "")]), effect=WRITE, attempts=9, retry_on={"23503": 9}, observer=observer)
    assert len(observer.retries) == 1
    assert booked.one("select attempts from pgonce.event where event_id = '2'") == 2


def test_the_deadline_bounds_it(booked: Desk) -> None:
    """R1: when the time is up, the error is final, whatever was asked for."""
    booked.sql("insert into closed values (now())")
    observer = Watching()
    with pytest.raises(EffectFailed, match="BUSY1"):
        booked.run(
            two(booked),
            effect=BUSY,
            attempts=1000,
            retry_on={"BUSY1": 1000},
            chunk_deadline_s=5.0,
            clerk=frozen(booked.clerk),
            observer=observer,
        )
    assert 3 < len(observer.retries) < 100


def test_an_error_of_ones_own_means_not_now(booked: Desk) -> None:
    """R2: an unknown SQLSTATE stops the run; asked for, it is tried again, and stops it after so many tries."""
    booked.sql("insert into account values ('2'); insert into closed values (now())")
    path = two(booked)
    for retry_on, tried in (({}, 0), ({"BUSY1": 2}, 2)):
        observer = Watching()
        with pytest.raises(EffectFailed) as stopped:
            booked.run(path, effect=BUSY, retry_on=retry_on, observer=observer)
        assert (stopped.value.sqlstate, len(observer.retries)) == ("BUSY1", tried)
        assert booked.statuses() == {}
    observer = Mending(lambda: booked.sql("delete from closed"), after=2)
    assert booked.run(path, effect=BUSY, retry_on={"BUSY1": 2}, observer=observer).exit_code == 0
    assert sorted(booked.sql("select * from log")) == [("1", 1), ("2", 2)]


def test_a_rehearsal_asks_for_the_same(booked: Desk) -> None:
    """A dry run tries again what the run would."""
    booked.sql("insert into account values ('2'); insert into closed values (now())")
    seen: list[float] = []

    def sleep(seconds: float) -> None:
        seen.append(seconds)
        booked.sql("delete from closed")

    for retry_on in ({}, {"BUSY1": 1}):
        with open_input(two(booked)) as source:
            order = make_order(effect=BUSY, retry_on=retry_on)
            clerk = replace(booked.clerk, sleep=sleep)
            if retry_on:
                assert rehearse(clerk, source, order, observer=Watching(), interrupted=lambda: False).exit_code == 0
            else:
                with pytest.raises(EffectFailed, match="BUSY1"):
                    rehearse(clerk, source, order, observer=Watching(), interrupted=lambda: False)
    assert len(seen) == 1
    assert booked.statuses() == {}


def test_a_key_of_pgonce_is_not_tried_again_whatever_is_asked_for(booked: Desk) -> None:
    """I2: who meets such a key compares what is stored; it is no matter of trying."""
    booked.sql("insert into account values ('2')")
    effect = "insert into pgonce.effect (job, source, event_id, amount_cents) select 'pay', '', event_id, 1 from chunk"
    observer = Watching()
    with pytest.raises(InvariantBroken):
        booked.run(two(booked), effect=effect, retry_on={"23505": 9, "pgonce.effect_pkey": 9}, observer=observer)
    assert observer.retries == []


def test_a_seed_makes_the_waits_repeatable(database: str) -> None:
    """The jitter is drawn from the seed, for the chunks and for connecting; without one no two draws are alike."""

    def draws(seed: int | None) -> list[float]:
        with opened(database, seed=seed) as clerk:
            return [clerk.random() for _ in range(5)]

    assert draws(7) == draws(7) != draws(8)
    assert draws(None) != draws(None)


@pytest.mark.parametrize("sqlstate", ["XX000", "08P01"])
def test_a_commit_in_doubt_is_resolved_and_not_tried_again_for_having_been_asked_for(
    booked: Desk, sqlstate: str
) -> None:
    """R3: the answer to COMMIT leaves it open whether it took place; the position row is read first, under its lock."""
    booked.sql("insert into account values ('2')")
    with failing(booked, 3, at.error_before(sqlstate)) as (clerk, proxy):
        report = booked.run(two(booked), effect=WRITE, clerk=clerk, attempts=3, retry_on={sqlstate: 1})
        after = [boundary for boundary in proxy.log if boundary.number > proxy.fired[0].boundary.number]
    first = [boundary.statement.startswith(("select s.token", "with new_event")) for boundary in after].index(True)
    assert after[first].statement.startswith("select s.token")
    assert (report.exit_code, report.run.applied.rows) == (0, 2)
    assert sorted(booked.sql("select * from log")) == [("1", 1), ("2", 2)]
