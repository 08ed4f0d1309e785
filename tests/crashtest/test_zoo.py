"""The programs of the zoo, right and wrong, under `pgonce crashtest`: its verdict at each point is the expected one.

All of them at all their points take half an hour: ``make zoo-command``. Some quick ones are tested here always.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pgonce.crashtest.faults import Fault
from zoo import catalogue, commanded
from zoo.catalogue import Point, Program

# One that is right, one that doubles, one that gets stuck; psql starts ten times as fast as an interpreter.
QUICK = ("psql-keeps-going", "psql-one-transaction", "psql-autocommit")
QUICK_FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.KILL)


def judged(program: Program, folder: Path, *, faults: Sequence[Fault] = tuple(Fault)) -> tuple[str, ...]:
    """Return where the command's verdict is another than the zoo's; skip where what the program needs is not there."""
    if missing := program.missing():
        pytest.skip(f"{missing} is not there")
    return commanded.judge(program, folder, faults=faults).mismatches


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_program_gets_its_verdicts(name: str, tmp_path: Path) -> None:
    """No false SAFE and no false alarm at any point, and by a plain second run."""
    (program,) = catalogue.programs(name)
    assert not judged(program, tmp_path, faults=QUICK_FAULTS)


def test_a_wrong_expectation_is_a_mismatch(tmp_path: Path) -> None:
    """The comparison can fail: at each point, for a fault as a whole, and for the second run."""
    (program,) = catalogue.programs("psql-one-transaction")
    stuck = Point(re.compile("^COMMIT"), ("after",), "STUCK", (), ("cut-after",), unsure=False)
    lying = dataclasses.replace(program, expect={"cut-after": "STUCK"}, points=(stuck,), rerun="DOUBLED")
    found = judged(lying, tmp_path, faults=(Fault.CUT_AFTER,))
    beginnings = ("cut-after at query 'COMMIT' #1: SAFE", "cut-after: the worst is SAFE", "a second run: SAFE")
    assert [line.startswith(begin) for line, begin in zip(found, beginnings, strict=True)] == [True, True, True]


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("program", catalogue.programs(), ids=lambda program: program.name)
def test_a_program_of_the_zoo_gets_its_verdicts(program: Program, tmp_path: Path) -> None:
    """By every fault at every point of every program."""
    assert not judged(program, tmp_path)
