"""The experiment notices when its function, its retry or its race does something else than it says."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from pgonce import lab
from pgonce.errors import Inconclusive, InvariantBroken
from pgonce.lab import experiment
from pgonce.lab.home import Lab
from pgonce.lab.stage import Stage, stage
from pgonce.model.backoff import Backoff

pytestmark = pytest.mark.xdist_group("lab")

COMPARED = """    if stored_amount <> payload then
        raise sqlstate '22000' using message = format('event %s is stored with %s, not %s', id, stored_amount, payload);
    end if;
"""
COMPLETED = "        when stored_status = 'completed' then return 'already';\n"
STORED = "            update wiki_lab.batch_jobs as j set status = 'failed' where j.event_id = id;\n"

LOG = """create table wiki_lab.seen (n integer generated always as identity, event_id integer, status text);
create function wiki_lab.note() returns trigger language plpgsql as
    $$ begin insert into wiki_lab.seen (event_id, status) values (new.event_id, new.status); return null; end $$;
create trigger note after update on wiki_lab.batch_jobs for each row execute function wiki_lab.note();"""


def play(one: Lab) -> list[str]:
    return lab.play(one, lab.SCENARIOS[0]).texts()


def without(text: str, instead: str = "") -> Callable[[], str]:
    """Return the SQL of the experiment with something in it replaced."""
    original = experiment.function_text()
    assert original.count(text) == 1
    return lambda: original.replace(text, instead)


@pytest.mark.parametrize(
    ("text", "instead", "noticed"),
    [
        pytest.param(COMPLETED, f"        {COMPLETED}", "", id="nothing is wrong"),
        pytest.param(COMPARED, "", "another payload for the completed event", id="the payload is not compared"),
        pytest.param(
            COMPARED,
            f"    if stored_status = 'completed' then return 'already'; end if;\n{COMPARED}",
            "another payload for the completed event",
            id="completed before the payload",
        ),
        pytest.param(
            COMPARED,
            f"    if stored_status = 'failed' then return 'failed'; end if;\n{COMPARED}",
            "another payload for the failed event",
            id="failed before the payload",
        ),
        pytest.param(STORED, "", "the refusal is stored", id="failed is not stored"),
        pytest.param(COMPLETED, "", "23505", id="completed is not looked at"),
    ],
)
def test_a_function_that_does_something_else_is_noticed(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch, text: str, instead: str, noticed: str
) -> None:
    """Each part of the function is there for a line, which is not printed without it."""
    monkeypatch.setattr(experiment, "HOLD_S", 0.5)
    monkeypatch.setattr(experiment, "function_text", without(text, instead))
    if not noticed:
        assert len(play(thrown_away)) == 6
        return
    with pytest.raises((InvariantBroken, Inconclusive), match=noticed):
        play(thrown_away)


def test_running_is_written_inside_the_transaction_and_failed_is_stored(thrown_away: Lab) -> None:
    """Nobody else ever sees running, so a trigger writes down what the function does."""
    with stage(thrown_away, "experiment", limited=True) as on:
        experiment.set_up(on)
        experiment._reset(on)
        on.sql(LOG)
        connection = on.connect("worker")
        assert experiment.apply_event(connection, experiment.EVENT, experiment.AMOUNT) == "applied"
        assert experiment.apply_event(connection, experiment.REFUSED_EVENT, -1) == "failed"
        seen = on.sql("select event_id, status from wiki_lab.seen order by n")
    assert seen == [(1, "running"), (1, "completed"), (2, "failed")]


@pytest.mark.parametrize(
    "retried",
    [
        pytest.param((psycopg.errors.SerializationFailure, psycopg.errors.DataException), id="22000 as well"),
        pytest.param((psycopg.Error,), id="every error"),
    ],
)
def test_a_retry_of_what_stays_is_noticed(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch, retried: tuple[type[psycopg.Error], ...]
) -> None:
    """Another payload is another payload the second time too: one attempt."""
    monkeypatch.setattr(experiment, "RETRIED", retried)
    with pytest.raises(InvariantBroken, match="another payload is"):
        play(thrown_away)


def test_the_waits_are_those_that_are_written_down(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.01 s, then 0.02 s, then no more; other waits are noticed by the experiment itself."""
    slept_s: list[float] = []

    def fail(_: int) -> str:
        raise psycopg.errors.SerializationFailure("on purpose")

    with stage(thrown_away, "experiment") as on, pytest.raises(experiment.RetriesUsedUp):
        experiment.apply_with_retry(on, fail, sleep=slept_s.append)
    assert slept_s == [0.01, 0.02] == experiment.WAITS_S
    monkeypatch.setattr(experiment, "BACKOFF", Backoff(first_s=0.001))
    with pytest.raises(InvariantBroken, match="the waits between them"):
        play(thrown_away)


def test_observed_is_said_only_of_what_was_seen(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word comes from the barrier."""
    monkeypatch.setattr(experiment, "HOLD_S", 0.5)
    monkeypatch.setattr(Stage, "wait_until_blocked", lambda *_, **__: time.sleep(0.2))
    assert play(thrown_away)[-1] == "race: blocked_B_by_A=not_observed applied/already effect_count=1 sum=100"
    [check_then_act] = [scenario for scenario in lab.SCENARIOS if scenario.name == "check-then-act"]
    assert "blocked_B_by_A=not_observed" in lab.play(thrown_away, check_then_act).texts()[0]
