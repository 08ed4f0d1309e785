"""``pgonce events``: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.terminal import Terminal

BAD = "id,amount,note\na,-5,x\nb,7,y\na,9,other\n"


@pytest.fixture
def terminal(database: str, tmp_path: Path) -> Terminal:
    """Give a terminal on a fresh database, with one input applied: a failed event, a good one, a conflict."""
    terminal = Terminal(database, tmp_path)
    assert terminal.run("bad.csv", BAD).code == 1
    return terminal


def test_get_shows_an_event_for_people_and_for_programs(terminal: Terminal) -> None:
    """Lines for people; with --json one document with stable keys."""
    shown = terminal.pgonce("events", "get", "a", "--job", "pay")
    assert shown.code == 0
    for words in ("failed", "-5 cents", "bad.csv line 2", "run 1, start 1", "note: x", "below zero", "run 1 line 4"):
        assert words in shown.out
    document = terminal.pgonce("events", "get", "a", "--job", "pay", "--json").json
    assert document["version"] == 1
    assert {"event_id": "a", "status": "failed", "amount_cents": -5, "line": 2, "effect_cents": None}.items() <= (
        document.items()
    )
    assert [finding["line"] for finding in document["findings"]] == [4]


def test_an_event_that_is_not_stored_ends_with_3(terminal: Terminal) -> None:
    """Exit code 3, nothing on stdout, and a message that says what an id is; for changes as well."""
    for words in (["get"], ["reopen", "--why", "w"], ["amend", "--why", "w", "--amount", "1"]):
        done = terminal.pgonce("events", *words, "A", "--job", "pay")
        assert (done.code, done.out) == (3, "")
        assert "job 'pay' has no event 'A' under the empty source" in done.err
        assert "column 'id'" in done.err
    assert terminal.pgonce("events", "get", "a", "--job", "nope").code == 78


def test_list_prints_a_line_an_event(terminal: Terminal) -> None:
    """Tab-separated off a terminal; --status narrows; a full page says so."""
    done = terminal.pgonce("events", "list", "--job", "pay")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert lines[0][:4] == ["source", "id", "status", "cents"]
    assert [line[1:4] for line in lines[1:]] == [["a", "failed", "-5"], ["b", "completed", "7"]]
    failed = terminal.pgonce("events", "list", "--job", "pay", "--status", "failed", "--limit", "1", "--json")
    assert [event["event_id"] for event in failed.json["events"]] == ["a"]
    assert "there may be more" in terminal.pgonce("events", "list", "--job", "pay", "--limit", "1").err
    assert terminal.pgonce("events", "list", "--job", "pay", "--status", "done").code == 2


def test_amend_then_the_same_input_applies_it_once(terminal: Terminal) -> None:
    """The way of a person: see it, amend it, hand the same file in again, twice; the conflict stays a finding."""
    amended = terminal.pgonce(
        "events", "amend", "a", "--job", "pay", "--amount", "5", "--set", "note=right, now", "--why", "sign"
    )
    assert amended.code == 0
    assert "amount: stored -5, now 5" in amended.err
    assert "Hand in the same input again" in amended.err
    for applied in (1, 0):
        done = terminal.run("bad.csv", None, "--json")
        assert (done.code, done.json["this_start"]["applied"]["rows"]) == (1, applied)
    shown = terminal.pgonce("events", "get", "a", "--job", "pay").out
    assert "5 cents" in shown
    assert "note: right, now" in shown
    assert "amended" in shown
    assert "sign" in shown
    assert "before: note: x" in shown
    assert terminal.pgonce("reconcile").code == 0
    refused = terminal.pgonce("events", "amend", "a", "--job", "pay", "--amount", "6", "--why", "more")
    assert refused.code == 1
    assert "compensating event" in refused.err


def test_amend_takes_json_values(terminal: Terminal) -> None:
    """--set-json gives a value a type; what is no JSON is refused."""
    wrong = terminal.pgonce("events", "amend", "a", "--job", "pay", "--set-json", "note={", "--why", "w")
    assert (wrong.code, "is not JSON" in wrong.err) == (1, True)
    done = terminal.pgonce("events", "amend", "a", "--job", "pay", "--set-json", "note=null", "--why", "w", "--json")
    assert done.json["differences"] == [{"field": "note", "old": '"x"', "new": "null"}]
    assert (done.json["status"], done.json["old_status"]) == ("pending", "failed")


@pytest.mark.parametrize(
    "words",
    [
        ["amend", "a", "--why", "w"],
        ["amend", "a", "--amount", "1"],
        ["amend", "a", "--why", "w", "--set", "note"],
        ["amend", "a", "--why", "w", "--set", "note=1", "--set", "note=2"],
        ["amend", "a", "--why", "w", "--set", "note=1", "--set-json", "note=2"],
        ["reopen", "--why", "w"],
        ["reopen", "a", "--why", "w", "--all-failed"],
        ["reopen", "a", "--why", "w", "--run", "1"],
        ["reopen", "a"],
        ["reopen", "--all-failed", "--why", "w", "--source", "s"],
    ],
)
def test_usage_that_makes_no_sense_ends_with_2(terminal: Terminal, words: list[str]) -> None:
    """Exit code 2, and nothing was changed."""
    assert terminal.pgonce("events", *words, "--job", "pay").code == 2
    assert terminal.pgonce("events", "get", "a", "--job", "pay", "--json").json["history"] == []


def test_reopen_makes_an_event_pending_again(terminal: Terminal) -> None:
    """One event by its id; a second time for the same reason it is done, for another there is nothing to reopen."""
    done = terminal.pgonce("events", "reopen", "a", "--job", "pay", "--why", "again")
    assert (done.code, "is reopened" in done.err) == (0, True)
    again = terminal.pgonce("events", "reopen", "a", "--job", "pay", "--why", "again")
    assert (again.code, "so it was already" in again.err) == (0, True)
    other = terminal.pgonce("events", "reopen", "a", "--job", "pay", "--why", "once more")
    assert (other.code, "nothing to reopen" in other.err) == (1, True)
    assert len(terminal.pgonce("events", "get", "a", "--job", "pay", "--json").json["history"]) == 1


def test_all_failed_asks_first(terminal: Terminal) -> None:
    """Without --yes it asks, and an answer of no changes nothing."""
    asked = terminal.pgonce("events", "reopen", "--all-failed", "--job", "pay", "--why", "all", stdin="n\n")
    assert asked.code == 130
    assert terminal.pgonce("events", "get", "a", "--job", "pay", "--json").json["status"] == "failed"
    done = terminal.pgonce("events", "reopen", "--all-failed", "--job", "pay", "--why", "all", "--yes", "--json")
    assert (done.code, done.json["reopened"]) == (0, 1)


def test_text_from_an_input_cannot_command_the_terminal(terminal: Terminal) -> None:
    """Control characters of a payload are printed as escapes."""
    terminal.run("odd.csv", "id,amount,note\nz,-1,\x1b[31mred\n")
    shown = terminal.pgonce("events", "get", "z", "--job", "pay").out
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
