"""R5: a try that a crash ended counts in its start, so that it cannot go on for ever, but not against the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from database.jobs import Desk, Watching, clerk_on
from pgonce.errors import Retryable

LOG = "create table log (event_id text primary key, cents bigint)"
WRITE = "insert into log select event_id, amount_cents from chunk"

ENDS_ITS_BACKEND = f"{WRITE}; select pg_terminate_backend(pg_backend_pid()) from chunk where note = 'poison'"
SNAG = (
    f"{WRITE}; do $$ begin if exists (select from chunk where note = 'poison') "
    "then raise sqlstate '40001'; end if; end $$"
)


def tried(desk: Desk) -> tuple[Any, ...]:
    """Return what is stored of the row that ends its server: status, attempts, and whether it says why."""
    return desk.sql("select status, attempts, error is not null from pgonce.event where event_id = '2'")[0]


@pytest.fixture
def path(desk: Desk) -> Path:
    desk.sql(LOG)
    return desk.csv([(1, 10, ""), (2, 20, "poison"), (3, 30, "")])


def test_a_row_that_ends_its_backend_stands_alone_and_uses_up_nothing(desk: Desk, path: Path) -> None:
    """The others are applied; however often it is started, the row may be tried again, and then it is applied once."""
    for _start in range(4):
        report = desk.run(path, effect=ENDS_ITS_BACKEND)
        assert (report.exit_code, report.run.applied.rows, report.run.pending.rows) == (75, 2, 1)
        assert tried(desk) == ("pending", 0, True)
    desk.sql("update pgonce.job set attempt_budget = 1")
    desk.run(path, effect=ENDS_ITS_BACKEND)
    assert tried(desk) == ("pending", 0, True)
    assert sorted(desk.sql("select * from log")) == [("1", 10), ("3", 30)]


def test_what_is_no_crash_uses_the_budget_up(desk: Desk, path: Path) -> None:
    """The same row, refused by a serialization failure each time: three attempts a start, nine in all, and no more."""
    for attempts in (3, 6, 9, 9):
        assert desk.run(path, effect=SNAG).exit_code == 75
        assert tried(desk) == ("pending", attempts, True)


def test_who_looks_on_is_told_every_row_by_its_result(desk: Desk) -> None:
    """What is pending is not told as failed, and what waits for a grant is not left out."""
    desk.sql(LOG)
    path = desk.csv([(1, 10, ""), (2, 20, "poison"), (3, -1, ""), (1, 10, ""), (1, 11, ""), ("", 4, "")])
    for attempts in (9, 3):
        watching = Watching()
        desk.run(path, effect=SNAG, observer=watching, attempts=attempts)
        told = {
            name: sum(getattr(step, name) for step in watching.steps)
            for name in ("rows", "applied", "already", "failed", "conflict", "rejected", "pending")
        }
        again = attempts == 3
        assert told == {
            "rows": 6,
            "applied": 0 if again else 1,
            "already": 2 if again else 1,
            "failed": 1,
            "conflict": 1,
            "rejected": 1,
            "pending": 1,
        }


def test_who_looks_on_at_a_whole_input_is_told_every_row(desk: Desk) -> None:
    """One transaction is one step, whatever the number of chunks it was read in."""
    watching = Watching()
    path = desk.csv([(number, 10, "") for number in (1, 2, 3, 1, 2)])
    desk.run(path, observer=watching, checkpoint="all", chunk_rows=2)
    assert [(step.rows, step.applied, step.already) for step in watching.steps] == [(5, 3, 2)]


@pytest.mark.parametrize("code", ["08001", "57P01", "57P02"])
def test_a_crash_that_is_only_raised_is_charged(desk: Desk, path: Path, code: str) -> None:
    """R4, R5: a function that cannot reach another server says "try later", on a session that lives on."""
    for attempts in (3, 6, 9, 9):
        assert desk.run(path, effect=SNAG.replace("40001", code)).exit_code == 75
        assert tried(desk) == ("pending", attempts, True)


def test_waiting_for_a_row_costs_no_attempt(desk: Desk, path: Path) -> None:
    """R1: the server says that it was the lock which was not available, and not that the statement took too long."""
    desk.sql("create table account (name text primary key, cents bigint); insert into account values ('a', 0)")
    effect = "update account set cents = cents + (select sum(amount_cents) from chunk)"
    with psycopg.connect(desk.dsn) as other:
        other.execute("select from account for update")
        for _start in range(2):
            with pytest.raises(Retryable, match=r"55P03.*Its time was used up") as caught:
                desk.run(path, effect=effect, attempts=1, chunk_deadline_s=0.4)
            assert isinstance(caught.value.__cause__, psycopg.errors.LockNotAvailable)
    assert desk.statuses() == {}


def test_a_time_out_of_the_role_does_not_cut_a_chunk_short(desk: Desk) -> None:
    """R1: a timer that ran when the transaction began is replaced by the one of its deadline."""
    if desk.one("select current_setting('server_version_num')::int") < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    clerk = clerk_on(make_conninfo(desk.dsn, options="-c transaction_timeout=300ms"))
    report = desk.run(desk.csv([(1, 10, "")]), clerk=clerk, effect="select pg_sleep(0.9)")
    clerk.session.close()
    assert (report.exit_code, desk.one("select attempts from pgonce.event")) == (0, 1)
