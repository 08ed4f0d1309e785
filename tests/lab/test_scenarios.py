"""What the lab shows: the right workers are exact, and every wrong one does its damage, every time."""

from __future__ import annotations

import time

import psycopg
import pytest

from pgonce import lab
from pgonce.errors import ConfigurationError, Inconclusive
from pgonce.lab import stage as stages
from pgonce.lab.home import Lab
from pgonce.lab.play import chosen
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.stage import Stage, stage

pytestmark = pytest.mark.xdist_group("lab")

FURTHER = [scenario for scenario in lab.SCENARIOS if scenario.wrong is not None]
TIMES = 20

EXPERIMENT = """before_write: attempts=2 replay=already effect_count=1
after_write: attempts=2 replay=already effect_count=1
after_commit: attempts=2 replay=already effect_count=1
exhausted=3 pending|0 permanent_failed=yes payload_conflict=22000
race: blocked_B_by_A=observed applied/already effect_count=1 sum=100
race: blocked_B_by_A=observed applied/already effect_count=1 sum=100
"""

# What each wrong worker leaves: the cents that there are, line by line, and those that there should be.
DAMAGE = {
    "check-then-act": [(200, 100)],
    "ssi": [(-100, 50)],
    "deadlock": [(250, 200)],
    "netcut": [(0, 100), (200, 100)],
    "kill9": [(200, 100)],
    "stale-read": [(200, 100), (200, 100)],
    "swallowed": [(0, 100)],
    "crash": [(100, 200)],
    "lost-commits": [(400, 600)],
    "file-atomic": [(900, 1000)],
}


GONE_S_MAX = 20.0
"""A session ends within milliseconds of its client; this is for a busy machine."""


def leftovers(one: Lab) -> tuple[list[str], list[str]]:
    """Return what a scenario left on the server, databases and application names, once it has had time to end."""
    deadline = time.monotonic() + GONE_S_MAX
    while (found := _looked(one)) != ([], []) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _looked(one: Lab) -> tuple[list[str], list[str]]:
    with psycopg.connect(one.dsn("lab-test"), autocommit=True) as connection:
        databases = connection.execute("select datname from pg_database where datname like 'lab%'").fetchall()
        sessions = connection.execute(
            "select application_name from pg_stat_activity where backend_type = 'client backend'"
            " and pid <> pg_backend_pid()"
        ).fetchall()
    return [name for (name,) in databases], [name for (name,) in sessions]


def test_the_experiment_prints_its_lines_to_the_letter(thrown_away: Lab) -> None:
    """SPEC, the question; E1-E5, R1, I3, I7: six lines, and the stage is struck afterwards."""
    said: list[str] = []
    played = lab.play(thrown_away, lab.SCENARIOS[0], tell=said.append)
    assert said == EXPERIMENT.splitlines() == played.texts()
    assert leftovers(thrown_away) == ([], [])


@pytest.mark.parametrize("scenario", FURTHER, ids=lambda one: one.name)
def test_the_right_worker_is_exact(thrown_away: Lab, scenario: Scenario) -> None:
    """E1, E4, R2, R3, E6, E8: the money is as it should be, and nothing is left on the server."""
    played = lab.play(thrown_away, scenario)
    assert played.exact, played.texts()
    assert played.lines
    assert all(" exact" in text for text in played.texts())
    assert leftovers(thrown_away) == ([], [])


@pytest.mark.parametrize("scenario", FURTHER, ids=lambda one: one.name)
def test_the_wrong_worker_does_its_damage_every_time(thrown_away: Lab, scenario: Scenario) -> None:
    """Twenty of twenty, by barriers: the same damage in every line, to the cent."""
    for _ in range(TIMES):
        played = lab.play(thrown_away, scenario, wrong=True)
        if scenario.name == "sum-once":  # PostgreSQL may take either of the two rows
            assert [(one.cents in (100, 250), one.cents_right) for one in played.lines] == [(True, 350)]
        else:
            assert [(one.cents, one.cents_right) for one in played.lines] == DAMAGE[scenario.name]
        assert all(one.damage for one in played.lines)
        assert all("WRONG" in text for text in played.texts())


def test_every_scenario_says_what_it_asks_and_has_a_name_of_its_own() -> None:
    """A reader needs the question and both ways in words."""
    assert len({scenario.name for scenario in lab.SCENARIOS}) == len(lab.SCENARIOS) == len(FURTHER) + 1
    for scenario in FURTHER:
        assert scenario.question.endswith("?") or "?" in scenario.question or scenario.question.endswith(".")
        assert scenario.right_way.endswith(".")
        assert scenario.wrong_way.endswith(".")


def test_the_time_line_is_in_order_and_names_who_takes_part(thrown_away: Lab) -> None:
    """Steps carry seconds from the beginning, and both workers of a race are in it."""
    [race] = chosen(["check-then-act"])
    played = lab.play(thrown_away, race)
    moments = [step.at_s for step in played.steps]
    assert moments == sorted(moments)
    assert {"A", "B", "monitor"} <= {step.actor for step in played.steps}
    assert any("seen: B blocked by A" in step.text for step in played.steps)


def harmless(_: Stage) -> list[Line]:
    """Act as a wrong worker that happens to do no damage."""
    return [line(100, 100, luck="good")]


def test_a_wrong_worker_without_damage_is_inconclusive(thrown_away: Lab) -> None:
    """A demonstration that showed nothing is never reported as one that did."""
    scenario = Scenario("lucky", "Luck", "Is it?", "Yes.", harmless, "No.", harmless)
    with pytest.raises(Inconclusive, match="did no damage"):
        lab.play(thrown_away, scenario, wrong=True)
    assert lab.play(thrown_away, scenario).exact


def never_seen(on: Stage) -> list[Line]:
    """Wait for a worker that nobody starts, with another one left inside a statement."""
    connection = on.connect("A")
    on.start("A", lambda: connection.execute("select pg_sleep(60)"))
    on.psql("B", "select pg_sleep(60)")
    on.wait_until_blocked("A", by="nobody")
    return []


def test_a_barrier_that_is_not_seen_is_inconclusive_and_leaves_nothing(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened on the stage is closed, also what still runs; nobody waits for it."""
    monkeypatch.setattr(stages, "BARRIER_S_MAX", 0.2)
    began_s = time.monotonic()
    with pytest.raises(Inconclusive, match="A blocked by nobody"):
        lab.play(thrown_away, Scenario("stuck", "Stuck", "Is it?", "No.", never_seen))
    assert time.monotonic() - began_s < 30
    assert leftovers(thrown_away) == ([], [])
    assert not (thrown_away.home / "stage").exists()


def test_a_stage_replaces_what_a_killed_one_left(thrown_away: Lab) -> None:
    """The database and the folder of a scenario that was killed are in nobody's way."""
    with psycopg.connect(thrown_away.dsn("lab-test"), autocommit=True) as connection:
        connection.execute("create database lab_ssi")
    (thrown_away.home / "stage").mkdir()
    [ssi] = chosen(["ssi"])
    assert lab.play(thrown_away, ssi).exact
    with stage(thrown_away, "ssi") as on:
        assert on.sql("select 1") == [(1,)]


def test_a_scenario_that_does_not_exist_is_refused_with_the_list() -> None:
    """The message names all that there are."""
    with pytest.raises(ConfigurationError, match=r"no scenario 'zombi'.*experiment, check-then-act"):
        chosen(["ssi", "zombi"])
    assert [one.name for one in chosen([])] == [one.name for one in lab.SCENARIOS]


def test_the_experiment_has_no_wrong_worker(thrown_away: Lab) -> None:
    """Said plainly, instead of a run that shows nothing."""
    with pytest.raises(ConfigurationError, match="no wrong worker"):
        lab.play(thrown_away, lab.SCENARIOS[0], wrong=True)
