"""The expected verdicts are facts: an oracle of plain SQL fails every program at its points and compares the ends."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgonce import server as embedded
from servers_plugin import chosen_binaries
from zoo import catalogue
from zoo.catalogue import FAULTS, Program
from zoo.failing import Cage
from zoo.judge import SETTINGS, judge

# Of the points that are SAFE by expectation; those of every other verdict are all tried. The campaign tries them all.
SAFE_POINTS = 6

CUTS = ("cut-before", "cut-after")


@pytest.fixture(params=catalogue.programs(), ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    """Give each program of the zoo, skipping it where what it needs is not there."""
    chosen: Program = request.param
    if missing := chosen.missing():
        pytest.skip(f"{missing} is not there")
    return chosen


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="zoo-") as made:
        yield Path(made)


def test_a_cut_connection_does_what_is_expected(
    program: Program, make_database: Callable[..., str], folder: Path
) -> None:
    """The connection is cut before the server sees a message, or after it has acted on it; then it runs again."""
    with Cage(program, make_database(), folder) as cage:
        tried = list(cage.try_all(CUTS, sample=SAFE_POINTS))
        wrong = [str(one) for one in tried if one.verdict not in cage.expected(one.fault, one.when, one.place)]
        assert not wrong, "\n".join(wrong)
        for fault in CUTS:
            found = catalogue.worst([one.verdict for one in tried if one.fault == fault])
            assert found == program.expect[fault]


@pytest.mark.campaign
@pytest.mark.parametrize("points", ["statement", "message"])
def test_every_fault_does_what_is_expected(program: Program, points: str) -> None:
    """The same at all points, for kills, ended backends, crashes of the server and its own 40001."""
    with embedded.scratch(settings=SETTINGS, binaries=chosen_binaries()) as server:
        assert judge(program, server, tuple(FAULTS), points="message" if points == "message" else "statement") == 0
