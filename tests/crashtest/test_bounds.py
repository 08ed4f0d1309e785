"""Bounds: what matters most is tried first, what was not tried is said, and who stops a test keeps its report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crashtest.programs import INSERT_THEN_MARK, SCHEMA, crash_python
from pgonce.crashtest.boundary import Boundary
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.plan import weightiest_first
from pgonce.crashtest.points import Tracker
from pgonce.crashtest.wire import Kind

STATEMENTS = ("set x = 1", "select 1", "begin", "insert into a values (1)", "select 2", "update b set c = 3", "commit")
SWALLOWS = """
import psycopg
try:
    with psycopg.connect("") as connection:
        connection.execute("insert into done values ('x') on conflict do nothing")
except psycopg.Error:
    print("never mind")
"""
DOUBLES = "import psycopg\nwith psycopg.connect('') as c: c.execute('update balance set cents = cents + 7')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for a program."""
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.mark.parametrize("seed", range(8))
def test_what_writes_is_tried_first_and_each_statement_once_before_any_comes_again(seed: int) -> None:
    """A chance decides among equals only: else a wrong program could pass for a safe one."""
    tracker = Tracker()
    sent = [(Kind.STARTUP, ""), *[(Kind.QUERY, text) for text in STATEMENTS * 2], (Kind.TERMINATE, "")]
    met = [tracker.meet(Boundary(1, n, n, kind, text, "I")) for n, (kind, text) in enumerate(sent, 1)]
    words = [one.words for one in weightiest_first(met, seed)]
    assert {words[0], words[1], words[2]} == {"insert into a values (1)", "update b set c = 3", "commit"}
    assert words[3] == "select 1", "a function may write"
    assert set(words[4:8]) == {"set x = 1", "begin", "(connecting)", "(disconnecting)"}
    assert set(words[8:11]) == {words[0], words[1], words[2]}


def test_a_bound_finds_what_matters_and_says_what_it_left_out(folder: Path) -> None:
    """Of two points, both are writes; the last line counts the others."""
    report = crash_python(folder, INSERT_THEN_MARK, points_max=2, faults=[Fault.CUT_AFTER])
    assert report.sentence.startswith("NOT SAFE (DOUBLED): SAFE at 1 of 2 points tried; ")
    assert report.sentence.endswith(f"{report.points_untried} more were not tried")
    whole = crash_python(folder, INSERT_THEN_MARK, faults=[Fault.CUT_AFTER])
    assert whole.points_untried == 0
    assert len(whole.points) == 2 + report.points_untried


def test_a_program_that_says_too_early_that_all_is_well_is_told_in_the_last_line(folder: Path) -> None:
    """Running it again is safe; but nobody would."""
    report = crash_python(folder, SWALLOWS, faults=[Fault.CUT_BEFORE])
    assert report.is_safe
    assert report.too_early > 0
    assert f"; but in {report.too_early} trials it said that all is well before its work was done" in report.sentence


def crashtest(folder: Path, program: str, *options: str) -> subprocess.Popen[str]:
    """Start the command."""
    (folder / "schema.sql").write_text(SCHEMA)
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "pgonce", "crashtest", "--setup", "schema.sql", "-v", *options]
    return subprocess.Popen(
        [*command, "--", sys.executable, "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_stops_a_test_gets_the_report_of_what_was_tried(folder: Path, number: signal.Signals, code: int) -> None:
    """Exit code, sentence, page, and how to go on; what a plain second run does was said at once."""
    with crashtest(folder, DOUBLES, "--report", "out.html", "--resume", "tried.jsonl") as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if "/" in line and ":cut-" in line:
                os.kill(process.pid, number)
                break
        out, err = process.communicate(timeout=100)
    assert process.returncode == code, err
    assert any("by a second run without any fault" in line for line in told)
    assert "stopping when the trial in hand has ended" in err
    assert "kept in tried.jsonl: the same command goes on" in err
    last = out.splitlines()[-1]
    assert last.startswith("stopped as asked after ")
    assert "not tried" in last
    assert "stopped as asked after" in (folder / "out.html").read_text()
    assert (folder / "tried.jsonl").read_text().count("\n") >= 2
