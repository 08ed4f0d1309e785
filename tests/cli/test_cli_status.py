"""``pgonce status`` and ``pgonce runs`` as processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.invoked import COMMAND_S_MAX, Command, environment

JOB = ("--job", "pay", "--key", "id", "--amount", "amount")


@pytest.fixture
def pgonce(database: str, tmp_path: Path) -> Command:
    """Give the command on a fresh database, in a fresh folder."""
    return Command(database, tmp_path)


def test_status_of_an_empty_database_is_no_error(pgonce: Command) -> None:
    """Nothing is there, and that is all it says."""
    found = pgonce("status")
    assert (found.code, found.out) == (0, "job\tstate\tevents\tcents\n")
    assert pgonce("runs").code == 0


def test_status_counts_jobs_and_names_unfinished_runs(pgonce: Command) -> None:
    """A run that stopped at a bad row is unfinished: how it stopped and up to where it is settled."""
    stopped = pgonce("run", pgonce.csv("a,100,x", ",1,x", "b,2,x"), *JOB, "--on-error", "stop")
    assert stopped.code == 1
    found = pgonce("status", "--job", "pay")
    assert found.code == 0
    assert "pay\tcompleted\t1\t100" in found.out
    assert "1\tpay\tin.csv\tstopped: StopRequested\tline 2, 23 of 34 bytes" in found.out
    told = pgonce("status", "--json").json
    assert list(told) == ["version", "jobs", "unfinished_runs"]
    assert told["jobs"][0]["events"]["completed"] == {"rows": 1, "cents": 100}
    assert told["unfinished_runs"][0]["state"] == "stopped"


def test_an_unknown_job_is_not_found(pgonce: Command) -> None:
    """3, and how to find those there are."""
    found = pgonce("status", "--job", "none")
    assert (found.code, found.out) == (3, "")
    assert "there is no job 'none'" in found.err


def test_runs_lists_what_was_read_and_what_it_came_to(pgonce: Command) -> None:
    """Newest first, with counts; the keys of the JSON are stable."""
    assert pgonce("run", pgonce.csv("a,100,x"), *JOB).code == 0
    assert pgonce("run", pgonce.csv("a,100,x", "b,5,x", name="two.csv"), *JOB).code == 0
    lines = pgonce("runs").out.splitlines()
    assert [line.split("\t")[:6] for line in lines[1:]] == [
        ["2", "pay", "apply", "two.csv", "", "finished"],
        ["1", "pay", "apply", "in.csv", "", "finished"],
    ]
    assert "1 applied, 1 already" in lines[1]
    (told,) = pgonce("runs", "--limit", "1", "--json").json["runs"]
    assert list(told) == [
        "run", "job", "kind", "source", "input", "input_bytes", "state", "starts", "owner", "owner_alive", "ended_how",
        "position_bytes", "lines", "silent_s", "counts", "begun_at", "finished_at",
    ]  # fmt: skip
    assert pgonce("runs", "--limit", "0").code == 2


@pytest.mark.parametrize("words", [("status",), ("runs",), ("reconcile",), ("job", "list"), ("status", "--json")])
def test_an_output_that_cannot_be_written_is_said(pgonce: Command, words: tuple[str, ...]) -> None:
    """Who asked and got nothing must not take that for an answer: 70, one sentence, no traceback."""
    argv = [sys.executable, "-W", "error", "-m", "pgonce", *words, "--dsn", pgonce.dsn]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            argv, stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=COMMAND_S_MAX, check=False
        )
    assert done.returncode == 70, done.stderr
    assert b"could not be written" in done.stderr
    assert b"Traceback" not in done.stderr
