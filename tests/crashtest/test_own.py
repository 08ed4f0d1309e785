"""pgonce's own commands are safe to run again, by its own crash test."""

from __future__ import annotations

from pathlib import Path

import pytest

from crashtest import own
from pgonce.crashtest.faults import Fault

# A run has some eighty points, and each takes two starts of an interpreter.
POINTS = 4


def test_some_points_of_a_run_are_safe(tmp_path: Path) -> None:
    """A sample of what ``make crashtest`` tries everywhere."""
    (case,) = (case for case in own.CASES if case.name == "run-chunks")
    report = own.crash(case, tmp_path, faults=(Fault.CUT_AFTER,), points_max=POINTS)
    assert report.is_safe, report.sentence
    assert report.baseline.again[0].value == "SAFE"
    assert "pgonce.event" in report.baseline.effect


def test_some_points_of_a_reconciliation_are_safe(tmp_path: Path) -> None:
    """It writes, too: runs that were finished elsewhere are confirmed, and nothing else changes."""
    (case,) = (case for case in own.CASES if case.name == "reconcile")
    report = own.crash(case, tmp_path, faults=(Fault.CUT_BEFORE,), points_max=POINTS)
    assert report.is_safe, report.sentence
    assert any(met.words.startswith('update "pgonce".run') for met in report.baseline.met)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", own.CASES, ids=lambda case: case.name)
def test_every_point_of_a_command_is_safe(case: own.Case, tmp_path: Path) -> None:
    """By every fault, at every occurrence of every statement."""
    report = own.crash(case, tmp_path)
    assert report.is_safe, report.sentence
