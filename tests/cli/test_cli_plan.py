"""``pgonce plan`` as a process: exit codes, what it prints, and that it stores nothing."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from cli.invoked import Command

JOB = ("--job", "pay", "--key", "id", "--amount", "amount")


@pytest.fixture
def pgonce(database: str, tmp_path: Path) -> Command:
    """Give the command on a fresh database, in a fresh folder."""
    return Command(database, tmp_path)


def test_a_plan_of_good_rows_exits_0_and_stores_nothing(pgonce: Command) -> None:
    """Rows and cents to be applied; afterwards there is still no job."""
    found = pgonce("plan", pgonce.csv("a,100,x", "b,250,x"), *JOB)
    assert found.code == 0
    assert "applied\t2\t350\t2\t350" in found.out
    assert "nothing was written; the run would complete" in found.err
    with psycopg.connect(pgonce.dsn) as connection:
        assert connection.execute("select count(*) from pgonce.job").fetchone() == (0,)


def test_bad_rows_exit_3_with_their_lines_and_reasons(pgonce: Command) -> None:
    """The first findings are listed, the others counted."""
    name = pgonce.csv("a,100,x", "a,1,x", ",5,x", "b,-1,x")
    found = pgonce("plan", name, *JOB, "--findings", "2")
    assert found.code == 3
    assert "3\tconflict\tevent 'a' came first with another payload, from in.csv line 2" in found.out
    assert "4\trejected\tcolumn id: is empty" in found.out
    assert "1 more rows need a look" in found.err
    assert "the run would exit 1" in found.err
    assert pgonce("run", name, *JOB).code == 1
    again = pgonce("plan", name, *JOB)
    assert (again.code, "recognised as run 1" in again.out) == (3, True)


def test_what_a_run_would_refuse_exits_78(pgonce: Command) -> None:
    """Another definition, or content of another job, as the run would say it."""
    name = pgonce.csv("a,100,x")
    assert pgonce("run", name, *JOB).code == 0
    other = pgonce("plan", name, "--job", "pay", "--key", "id")
    assert other.code == 78
    assert "amount: stored amount, now none" in other.err
    taken = pgonce("plan", name, "--job", "pya", "--key", "id", "--amount", "amount")
    assert taken.code == 78
    assert "already taken by run 1" in taken.err


def test_a_plan_for_adopting_standard_input_as_json(pgonce: Command) -> None:
    """The keys are stable; --adopt plans for pgonce adopt."""
    found = pgonce("plan", "-", *JOB, "--adopt", "--json", "-q", stdin=b"id,amount\na,-5\n")
    assert (found.code, found.err) == (0, "")
    assert list(found.json) == [
        "version", "job", "job_known", "kind", "input", "input_bytes", "source", "database", "run", "how", "from_line",
        "owner", "owner_alive", "this_start", "whole_run", "findings", "findings_left_out", "stops_at", "notes",
        "run_exit_code", "exit_code",
    ]  # fmt: skip
    assert found.json["this_start"]["adopted"] == {"rows": 1, "cents": -5}


def test_wrong_usage_exits_2(pgonce: Command) -> None:
    """A plan has no report to write."""
    assert pgonce("plan", pgonce.csv("a,1,x"), *JOB, "--report", "x").code == 2
    assert pgonce("plan").code == 2
