"""``pgonce job list|show|change`` as processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.invoked import Command

JOB = ("--job", "pay", "--key", "id", "--amount", "amount")


@pytest.fixture
def pgonce(database: str, tmp_path: Path) -> Command:
    """Give the command on a fresh database with one job."""
    command = Command(database, tmp_path)
    assert command("run", command.csv("a,100,x"), *JOB).code == 0
    return command


def test_jobs_are_listed(pgonce: Command) -> None:
    """By name, with the version in force, and why."""
    found = pgonce("job", "list")
    assert found.code == 0
    assert found.out.splitlines()[1].startswith("pay\t1\tid\t")
    assert found.out.rstrip().endswith("first run")
    assert [job["job"] for job in pgonce("job", "list", "--json").json["jobs"]] == ["pay"]


def test_a_change_is_on_record_and_may_be_made_again(pgonce: Command) -> None:
    """One version for one change, however often the command is run; show tells who, why and when."""
    change = ("job", "change", "pay", "--why", "notes change", "--key", "id", "--amount", "amount", "--ignore", "note")
    first, second = pgonce(*change), pgonce(*change)
    assert (first.code, second.code) == (0, 0)
    assert "version 2 is in force from now on" in first.err
    assert "has this definition already, as version 2; nothing was changed" in second.err
    shown = pgonce("job", "show", "pay")
    assert "ignore\tnote" in shown.out
    assert "notes change" in shown.out
    told = pgonce("job", "show", "pay", "--json").json
    assert list(told) == ["version", "job", "in_force", "versions"]
    assert (told["in_force"]["version"], told["in_force"]["definition"]["ignore"]) == (2, ["note"])
    assert [version["why"] for version in told["versions"]] == ["first run", "notes change"]
    refused = pgonce("run", "in.csv", *JOB)
    assert refused.code == 78
    assert "ignore: stored note, now none" in refused.err


def test_unknown_jobs(pgonce: Command) -> None:
    """To show one that is not there finds nothing (3); to change it is a mistake (78)."""
    assert pgonce("job", "show", "none").code == 3
    found = pgonce("job", "change", "none", "--why", "x", "--key", "id")
    assert found.code == 78
    assert "there is no job 'none'" in found.err


def test_a_change_needs_a_reason(pgonce: Command) -> None:
    """Usage without --why (2), and a blank reason is none (78)."""
    assert pgonce("job", "change", "pay", "--key", "id").code == 2
    assert pgonce("job", "change", "pay", "--key", "id", "--why", " ").code == 78
