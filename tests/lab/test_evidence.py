"""A scenario says only what was looked at: where what it is about did not happen, it is inconclusive, never green."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgonce import lab
from pgonce.crashtest.boundary import CUT_AFTER, PASS
from pgonce.errors import ConfigurationError, Inconclusive, InvariantBroken
from pgonce.lab import stage as stages
from pgonce.lab.home import Lab
from pgonce.lab.play import Played, chosen
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios import books, deadlock, kill9, netcut, ssi, stale_read, swallowed
from pgonce.lab.stage import Stage, stage
from pgonce.server import ScratchServer

pytestmark = pytest.mark.xdist_group("lab")

GONE_S_MAX = 20.0
"""A process ends within milliseconds; this is for a busy machine."""


def play(one: Lab, name: str, *, wrong: bool = False) -> Played:
    [scenario] = chosen([name])
    return lab.play(one, scenario, wrong=wrong)


def half_lucky(_: Stage) -> Iterator[Line]:
    """Act as a wrong worker that does its damage in one line of two."""
    yield line(200, 100, luck="bad")
    yield line(100, 100, luck="good")


def test_every_line_of_a_wrong_worker_has_to_show_damage(thrown_away: Lab) -> None:
    """One line without is not handed on, whatever the others show."""
    said: list[str] = []
    scenario = Scenario("half", "Half", "Is it?", "Yes.", half_lucky, "No.", half_lucky)
    with pytest.raises(Inconclusive, match="'half' did no damage"):
        lab.play(thrown_away, scenario, wrong=True, tell=said.append)
    assert said == ["half (wrong): luck=bad sum=200 of 100: WRONG: 100 cents too many"]


def broken(on: Stage) -> list[Line]:
    """Act with an error that nobody provided for."""
    on.sql("select 1 / 0")
    return []


def tampered(_: Stage) -> list[Line]:
    """Act on a promise that is broken."""
    raise InvariantBroken("broken on purpose")


def test_an_error_that_is_no_part_of_a_scenario_makes_it_inconclusive(thrown_away: Lab) -> None:
    """It names the scenario and the SQLSTATE; a broken promise stays what it is."""
    with pytest.raises(Inconclusive, match=r"'bad' met an error .* 22012"):
        lab.play(thrown_away, Scenario("bad", "Bad", "Is it?", "No.", broken))
    with pytest.raises(InvariantBroken):
        lab.play(thrown_away, Scenario("bad", "Bad", "Is it?", "No.", tampered))


def test_actors_have_no_limits_and_those_of_the_experiment_have_theirs(thrown_away: Lab) -> None:
    """Connections and psql processes alike: 0 is none."""
    for limited, expected in ((False, ["0", "0"]), (True, ["7s", "5s"])):
        with stage(thrown_away, "limits", limited=limited) as on:
            process = on.psql("A", "show statement_timeout", "show lock_timeout")
            assert process.communicate(timeout=20)[0].split() == expected
            connection = on.connect("B")
            shown = [on.execute("B", connection, f"show {name}") for name in ("statement_timeout", "lock_timeout")]
            assert [value for ((value,),) in shown] == expected
    assert [scenario.name for scenario in lab.SCENARIOS if scenario.limited] == ["experiment"]


def after(method: Callable[..., Any], then: Callable[[], object]) -> Callable[..., Any]:
    """Make a method that does something when it is done."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = method(self, *args, **kwargs)
        then()
        return done

    return wrapped


def test_a_player_that_stalls_changes_nothing(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the experiment's 5 s at a lock, after the barrier: waiting actors and a held COMMIT stay."""
    monkeypatch.setattr(Stage, "wait_until_blocked", after(Stage.wait_until_blocked, lambda: time.sleep(5.5)))
    assert play(thrown_away, "kill9").texts() == [
        "kill9: killed=inside_commit waited=yes rerun=already sum=100 of 100: exact"
    ]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_network_that_was_not_cut_is_inconclusive(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """The proxy has to have done it, at the COMMIT."""
    make = Stage.proxy
    monkeypatch.setattr(Stage, "proxy", lambda self, _: make(self, lambda _: PASS))
    with pytest.raises(Inconclusive, match="was not cut before commit: the client was told committed"):
        play(thrown_away, "netcut", wrong=wrong)


def test_a_cut_after_another_answer_than_commit_is_inconclusive(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A COMMIT that was answered with ROLLBACK was not carried out, wherever the cut was."""
    monkeypatch.setattr(books, "MARK", "update no_such_table set status = %s")
    execute = Stage.execute

    def swallowing(self: Stage, actor: str, connection: Any, text: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            return execute(self, actor, connection, text, *values)
        return []

    monkeypatch.setattr(Stage, "execute", swallowing)
    monkeypatch.setattr(netcut, "CUT_BEFORE", CUT_AFTER)
    with pytest.raises(Inconclusive, match="was not cut after commit: the client was told no_sqlstate"):
        play(thrown_away, "netcut")


@pytest.mark.parametrize("name", ["kill9", "stale-read"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_worker_that_was_not_killed_with_sigkill_is_inconclusive(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch, name: str, wrong: bool
) -> None:
    """SIGTERM lets a program tidy up, which is another experiment."""
    send = subprocess.Popen.send_signal
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda self, _: send(self, signal.SIGTERM))
    with pytest.raises(Inconclusive, match=f"not killed with SIGKILL inside its COMMIT .exit -{signal.SIGTERM:d}"):
        play(thrown_away, name, wrong=wrong)


def test_a_commit_that_went_on_before_the_kill_is_inconclusive(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate has to hold until the worker is dead."""
    kill = subprocess.Popen.send_signal

    def open_the_gate_first(self: subprocess.Popen[str], number: int) -> None:
        with psycopg.connect(thrown_away.dsn("lab-test", "lab_kill9"), autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'lab-gate'"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(GONE_S_MAX)
        kill(self, number)

    monkeypatch.setattr(subprocess.Popen, "send_signal", open_the_gate_first)
    with pytest.raises(Inconclusive, match="not killed with SIGKILL inside its COMMIT"):
        play(thrown_away, "kill9", wrong=True)


@pytest.mark.parametrize("wrong", [False, True])
def test_an_orderly_stop_is_no_crash(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    """The server's log has to say that it recovered."""
    monkeypatch.setattr(ScratchServer, "crash", ScratchServer.stop)
    with pytest.raises(Inconclusive, match="came up without recovering"):
        play(thrown_away, "crash", wrong=wrong)


@pytest.mark.parametrize("wrong", [False, True])
def test_commits_that_did_not_go_away_are_inconclusive(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """A server that only crashed has lost nothing."""
    monkeypatch.setattr(Stage, "set_back", Stage.crash)
    with pytest.raises(Inconclusive, match="no acknowledged commit went away: 4 were acknowledged"):
        play(thrown_away, "lost-commits", wrong=wrong)


def test_a_copy_that_a_killed_run_left_is_not_used(thrown_away: Lab) -> None:
    """It is removed first; cp would copy into it."""
    stale = thrown_away.home / stages.COPY
    stale.mkdir()
    (stale / "PG_VERSION").write_text("18")
    assert play(thrown_away, "lost-commits").texts() == [
        "lost-commits: remembered=4 noticed=yes done=6 sum=600 of 600: exact"
    ]
    assert not stale.exists()


def test_data_that_cannot_be_copied_are_said_and_the_server_is_up_again(
    thrown_away: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What cp says, and what to do; the other scenarios can go on."""
    with monkeypatch.context() as patch:
        patch.setattr(stages, "COPY", "nowhere/copy")
        with pytest.raises(Inconclusive, match=r"could not be copied .*No such file.*make room, then run it again"):
            play(thrown_away, "lost-commits")
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(Inconclusive, match="could not be copied"):
            play(thrown_away, "lost-commits")
    assert play(thrown_away, "ssi").exact


def test_no_serialization_failure_is_inconclusive(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing failed, nothing is said to have failed."""
    two = ssi._two
    monkeypatch.setattr(ssi, "_two", lambda on, _: two(on, "repeatable read"))
    with pytest.raises(Inconclusive, match="no serialization failure"):
        play(thrown_away, "ssi")


def test_whoever_got_40001_writes_if_it_is_still_allowed(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole transaction again: with less money asked for, the second time is allowed and has its effect."""
    monkeypatch.setattr(ssi, "WITHDRAWN", 60)
    assert play(thrown_away, "ssi").texts() == [
        "ssi: failed=40001 at=commit retried=whole second_time=allowed sum=80 of 80: exact"
    ]


def test_no_deadlock_is_inconclusive(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where B never waits for A, nobody fails, and B has nothing to repeat."""
    monkeypatch.setattr(deadlock, "TRANSFER_OF_B", ((-50, "b"), (+50, "b")))
    for wrong in (False, True):
        with pytest.raises(Inconclusive, match="no deadlock"):
            play(thrown_away, "deadlock", wrong=wrong)


def test_a_victim_that_repeats_nothing_is_not_exact(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of both accounts is right then as well, so the balances are looked at."""
    monkeypatch.setattr(deadlock, "_retry", lambda *_: "whole_transfer")
    with pytest.raises(Inconclusive, match="not both transfers"):
        play(thrown_away, "deadlock")


def test_a_log_that_does_not_fail_swallows_nothing(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """COMMIT is carried out then: the right worker has nothing to refuse, and the wrong one no damage."""
    monkeypatch.setattr(swallowed, "LOG_IT", "select 1")
    with pytest.raises(Inconclusive, match="it had not failed"):
        play(thrown_away, "swallowed")
    with pytest.raises(Inconclusive, match="no damage"):
        play(thrown_away, "swallowed", wrong=True)
    [line_of_it] = swallowed_line(thrown_away)
    assert ("server_did", "COMMIT") in line_of_it.facts


def swallowed_line(one: Lab) -> list[Line]:
    with stage(one, "swallowed") as on:
        return list(swallowed.wrong(on))


def test_a_commit_that_is_answered_with_rollback_is_said(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applied is what the server says, and what stands in the tables, not what was asked for."""

    def roll_back(self: Stage, actor: str, connection: Any) -> str:
        self.execute(actor, connection, "rollback")
        return "ROLLBACK"

    monkeypatch.setattr(Stage, "commit", roll_back)
    [first] = play(thrown_away, "check-then-act").lines
    facts = {"blocked_B_by_A": "observed", "A": "answered_ROLLBACK", "B": "answered_ROLLBACK"}
    assert (dict(first.facts), first.cents) == (facts, 0)
    assert [dict(one.facts)["applied"] for one in play(thrown_away, "file-atomic").lines] == ["0_of_4", "0_of_4"]


def test_what_the_dead_worker_left_is_read_from_the_tables(thrown_away: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With effect and mark in one transaction, the mark is written, and there is no damage to show."""
    monkeypatch.setattr(kill9, "EFFECT_ALONE", kill9.TOGETHER)
    with stage(thrown_away, "kill9") as on:
        [found] = kill9.wrong(on)
    facts = {"killed": "inside_commit", "effect": "committed", "mark": "written", "rerun": "already"}
    assert (dict(found.facts), found.damage) == (facts, "")


def test_the_tag_of_commit_is_looked_at(thrown_away: Lab) -> None:
    """Both ways of the right worker are on the time line: A learns it from the tag, the worker before COMMIT."""
    steps = [(step.actor, step.text) for step in play(thrown_away, "swallowed").steps]
    assert ("A", "-> ROLLBACK") in steps
    assert ("worker", "looks before COMMIT: the transaction is INERROR") in steps
    assert books.committed_as("applied", "ROLLBACK") == "answered_ROLLBACK"


def test_the_damage_of_a_read_that_lies_comes_from_believing_it(thrown_away: Lab) -> None:
    """The same workers, when the transaction has ended and the read says the truth, do no harm."""
    for worker, event, expected in (
        (stale_read.read_then_write, stale_read.OF_A_STORED_EVENT, ("completed", "already")),
        (stale_read.lock_then_upsert, stale_read.OF_A_NEW_EVENT, ("1_rows", "already")),
    ):
        with stage(thrown_away, "stale-read") as on:
            books.open_books(on, {"e1": 100} if event == stale_read.OF_A_STORED_EVENT else {})
            on.psql("worker", event, "commit").wait(GONE_S_MAX)
            assert worker(on, on.connect("again")) == expected
            assert books.total(on) == 100


def test_only_one_scenario_at_a_time_plays_in_a_lab(thrown_away: Lab) -> None:
    """The second one is told so, and the first one's database and folder stay."""
    lock = thrown_away.home / "stage.lock"
    with stage(thrown_away, "ssi") as on:
        with pytest.raises(ConfigurationError, match="another `pgonce lab run` plays in this lab"):
            play(thrown_away, "ssi")
        assert on.value("select current_database()") == "lab_ssi"
        assert on.folder.is_dir()
    assert play(thrown_away, "ssi").exact
    lock.unlink()
    lock.symlink_to(thrown_away.home / "elsewhere")
    try:
        with pytest.raises(ConfigurationError, match=r"stage.lock' cannot be opened"):
            play(thrown_away, "ssi")
        assert not (thrown_away.home / "elsewhere").exists()
    finally:
        lock.unlink()
