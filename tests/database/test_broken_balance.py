"""A run that does not balance is never reported as complete, however often it is run again."""

from __future__ import annotations

import pytest

from database.jobs import Desk
from pgonce.errors import InvariantBroken


def test_a_run_with_a_foreign_event_is_refused_again_and_again(desk: Desk) -> None:
    """P1: the same command gives the same answer, and is right again once the foreign row is out of the run."""
    path = desk.csv([(1, 10, "x"), (2, 20, "y")])
    desk.run(path)
    desk.sql("""
        insert into pgonce.event (job, source, event_id, status, amount_cents, payload, run_id, line, epoch)
        select job, source, 'foreign', 'completed', 5, payload, run_id, 99, epoch from pgonce.event where event_id = '1'
    """)
    for _ in range(3):
        with pytest.raises(InvariantBroken, match="2 rows and 30 cents were read, 3 rows and 35 cents are accounted"):
            desk.run(path)
    desk.forget("e.event_id = 'foreign'")
    report = desk.run(path)
    assert (report.exit_code, report.run.applied.rows, report.run.applied.cents) == (0, 2, 30)


def test_a_first_start_that_does_not_balance_leaves_the_run_unfinished(desk: Desk) -> None:
    """P1, E8: finished says that everything is accounted for."""
    path = desk.csv([(1, 10, "x"), (2, 20, "y")])
    effect = """insert into pgonce.event (job, source, event_id, status, amount_cents, payload, run_id, line, epoch)
        select job, source, 'foreign', 'completed', 5, payload, run_id, 99, epoch from pgonce.event where event_id = '1'
        on conflict do nothing"""
    for _ in range(2):
        with pytest.raises(InvariantBroken, match="does not balance"):
            desk.run(path, effect=effect)
        assert desk.one("select finished_at from pgonce.run") is None
