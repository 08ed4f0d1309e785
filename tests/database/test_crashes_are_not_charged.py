"""R5: a try that a crash ended counts in its start, so that it cannot go on for ever, but not against the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from database.jobs import Desk, Watching

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
