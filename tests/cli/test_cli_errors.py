"""``pgonce errors`` as a process: the policy, printed from the code, without any database."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.invoked import Command
from pgonce.model.policy import RULES, UNKNOWN

KEYS = [
    *("code", "name", "circumstance", "connecting", "before_commit", "at_commit"),
    *("retries", "burns_attempt", "charged", "cure", "fresh_connection", "remedy"),
]


@pytest.fixture
def pgonce(tmp_path: Path) -> Command:
    """Give the command; there is no database, and it is not to look for one."""
    return Command("", tmp_path)


def test_the_whole_policy_is_printed(pgonce: Command) -> None:
    """A line a rule, those without a SQLSTATE first, the one for unknown errors last; the rule of doubt is said."""
    found = pgonce("errors", on_database=False)
    assert found.code == 0
    title, *lines = found.out.splitlines()
    assert title.split("\t")[:3] == ["code", "name", "circumstance"]
    assert [line.split("\t")[0] for line in lines] == [*(rule.code or "none" for rule in RULES), "other"]
    assert [line.split("\t")[-1] for line in lines] == [rule.remedy for rule in (*RULES, UNKNOWN)]
    assert "40001\tserialization failure\t\ttransient\ttransient\ttransient\twithin the attempts\tyes" in found.out
    assert "FATAL, PANIC, no answer" in found.err


def test_a_code_is_told_in_words_by_circumstance(pgonce: Command) -> None:
    """57014 is two rules: ours is tried again, somebody else's stops the run before COMMIT."""
    told = pgonce("errors", "57014", on_database=False).out
    ours, others, *_ = told.split("\n\n")
    assert ours.startswith("57014 query cancelled, after pgonce's own time-out\n")
    assert "before COMMIT  transient: nothing was applied" in ours
    assert "attempts       a try uses one up, of this start and of the event's budget" in ours
    assert others.startswith("57014 query cancelled, cancelled by somebody else\n")
    assert "before COMMIT  operator: " in others
    assert "tried again    at COMMIT: until the deadline" in others
    assert "what to do     Somebody cancelled it" in others
    assert "leave every COMMIT in doubt" in told
    assert "40001" not in told


@pytest.mark.parametrize(
    ("code", "begins"), [("53200", "class 53: insufficient resources"), ("53100", "53100 disk full")]
)
def test_the_more_exact_rule_is_shown(pgonce: Command, code: str, begins: str) -> None:
    """A code without a line of its own is told by its class."""
    told = pgonce("errors", code, on_database=False).out
    assert told.startswith(begins)
    assert "does not know it" not in told


def test_a_class_shows_all_of_its_rules(pgonce: Command) -> None:
    """With a sentence for the codes of the class that none of them names."""
    told = pgonce("errors", "40", on_database=False).out
    heads = [part.split("\n")[0].split()[0] for part in told.split("\n\n")]
    assert heads[:5] == ["40000", "40001", "40002", "40003", "40P01"]
    assert "Another error of class 40: pgonce does not know it." in told
    assert "does not know it" not in pgonce("errors", "22", on_database=False).out


@pytest.mark.parametrize(("code", "says"), [("21000", "21000: "), ("ZZ", "ZZ: "), ("01000", "01000 in any other ")])
def test_an_unknown_error_is_said_to_be_one(pgonce: Command, code: str, says: str) -> None:
    """What no rule names is not tried again, and no row is to blame; the exit code is 0."""
    found = pgonce("errors", code, on_database=False)
    assert found.code == 0
    [line] = [line for line in found.out.splitlines() if "pgonce does not know it" in line]
    assert line.startswith(says)
    assert "it is not tried again (--retry-on CODE has it tried), no row is marked as failed" in line


def test_json_has_stable_keys(pgonce: Command) -> None:
    """The whole table, and one code of it."""
    whole = pgonce("errors", "--json", on_database=False).json
    assert list(whole) == ["version", "sqlstate", "rules", "unknown"]
    assert (whole["version"], whole["sqlstate"], len(whole["rules"])) == (1, None, len(RULES))
    assert all(list(rule) == KEYS for rule in (*whole["rules"], whole["unknown"]))
    one = pgonce("errors", "25P03", "--json", on_database=False).json
    assert one["sqlstate"] == "25P03"
    assert one["rules"] == [rule for rule in whole["rules"] if rule["code"] == "25P03"]
    assert (one["rules"][0]["retries"], one["rules"][0]["at_commit"]) == (1, "in doubt")
    assert pgonce("errors", "21000", "--json", on_database=False).json["rules"] == []
    assert whole["unknown"]["code"] == "other"


@pytest.mark.parametrize("code", ["40?01", "4000", "400011", "4", "", "40 01", "40-01", "٤٠٠٠١"])
def test_what_is_no_sqlstate_is_a_mistake_in_the_command(pgonce: Command, code: str) -> None:
    """Exit code 2, and how to write one."""
    found = pgonce("errors", code, on_database=False)
    assert found.code == 2
    assert "five digits or capital letters" in found.err
    assert found.out == ""


def test_a_code_may_be_written_in_small_letters_and_the_rare_case_comes_last(pgonce: Command) -> None:
    """57P01 is an ended session first, and only then a standby that COMMIT did not wait for."""
    assert pgonce("errors", "40p01", on_database=False).out == pgonce("errors", "40P01", on_database=False).out
    usual, rare, *_ = pgonce("errors", "57P01", on_database=False).out.split("\n\n")
    assert usual.startswith("57P01 admin shutdown\n")
    assert "attempts       a try uses up one of this start, none of the event's budget" in usual
    assert rare.startswith("57P01 wait for a synchronous standby ended")


def test_a_key_is_no_matter_of_connecting(pgonce: Command) -> None:
    """23505 needs a statement; what is said of it says the exit code."""
    told = pgonce("errors", "23505", on_database=False).out
    assert "connecting" not in told
    assert "refused (failed), the others are applied: exit code 1" in told
