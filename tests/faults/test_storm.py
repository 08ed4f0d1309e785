"""A short storm in every run of the suite; the long one is `make faults`."""

from __future__ import annotations

import random

import psycopg
import pytest

from faults import storm

DELETE_AN_EFFECT = """
alter table pgonce.effect disable trigger all;
delete from pgonce.effect where ctid = (select min(ctid) from pgonce.effect);
alter table pgonce.effect enable trigger all;
"""


def test_after_a_short_storm_the_books_are_exact() -> None:
    """FAILURES 3.1: whatever was met in these seconds; a few of the kinds of harm always are."""
    blown = storm.blow(6.0, seed=random.SystemRandom().randrange(1_000_000))
    assert not blown.wrong, f"seed {blown.seed}: {blown.wrong}"
    assert blown.met.total() > 0
    assert blown.files


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("update account set balance = balance + 1 where name = 'a0'", "the accounts hold"),
        (DELETE_AN_EFFECT, "no effect"),
    ],
)
def test_the_judge_sees_money_that_was_moved_behind_its_back(
    change: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is worth nothing if it cannot turn red."""
    drain = storm.drain

    def drain_and_spoil(blown: storm.Storm, dsn: str) -> None:
        drain(blown, dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute(change)

    monkeypatch.setattr(storm, "drain", drain_and_spoil)
    blown = storm.blow(1.0, seed=3)
    assert any(says in sentence for sentence in blown.wrong), blown.wrong
