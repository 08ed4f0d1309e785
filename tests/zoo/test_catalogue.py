"""The zoo is well-formed, and every program of it does, run twice without a fault, what is written beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from zoo import books, catalogue
from zoo.catalogue import Program
from zoo.failing import Cage
from zoo.running import command_of

ZOO = catalogue.programs()

PROGRAM_LINES_MAX = 60

# Not part of a program's own lines: what it reads.
INPUTS = (".csv", ".toml")


def named(program: Program) -> str:
    """Name a test after its program."""
    return program.name


@pytest.fixture(params=ZOO, ids=named)
def program(request: pytest.FixtureRequest) -> Program:
    """Give each program of the zoo, skipping it where what it needs is not there."""
    chosen: Program = request.param
    if missing := chosen.missing():
        pytest.skip(f"{missing} is not there")
    return chosen


def test_every_folder_is_a_program_and_there_are_right_and_wrong_ones() -> None:
    """A folder without its zoo.toml would never be looked at; a zoo of wrong programs alone shows no false alarm."""
    folders = {path.name for path in catalogue.ROOT.iterdir() if path.is_dir()} - {"__pycache__", "foreign"}
    assert folders == {program.name for program in ZOO}
    wrong = [program for program in ZOO if set(program.expect.values()) != {"SAFE"}]
    assert len(wrong) >= 12
    assert len(ZOO) - len(wrong) >= 12
    assert set(catalogue.VERDICTS) == {verdict for program in ZOO for verdict in (*program.expect.values(), "SAFE")}


@pytest.mark.parametrize("program", ZOO, ids=named)
def test_programs_are_short(program: Program) -> None:
    """A program of the zoo is understood at a glance."""
    for path in program.folder.iterdir():
        if path.is_file() and path.suffix not in INPUTS:
            assert len(path.read_text().splitlines()) < PROGRAM_LINES_MAX, path


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('when = "after"', 'when = "sometimes"', "when is before, after or both"),
        ('verdict = "DOUBLED"', 'verdict = "TWICE"', "there is no such verdict"),
        ('kill = "DOUBLED"', 'kill = "LOST"', "expect.kill is LOST, but"),
        ('kill = "DOUBLED"', "", "expect.kill is no verdict"),
        ('statement = "^update payment"', 'statement = "("', "statement: "),
        ('rerun = "SAFE"', 'rerun = "FINE"', "rerun is no verdict"),
        ('rerun = "SAFE"', 'rerun = "SAFE"\nrerums = "SAFE"', "rerums is not known"),
        ('setup = "schema.sql"', 'setup = "base.sql"', "there is no base.sql"),
    ],
)
def test_what_is_not_well_formed_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    """A slip of the pen in an expectation would make it hold for nothing; it is refused instead."""
    original = next(program for program in ZOO if program.name == "insert-then-mark")
    original.lay(tmp_path / "copy")
    text = (original.folder / "zoo.toml").read_text()
    (tmp_path / "copy" / "zoo.toml").write_text(text)
    assert catalogue.read(tmp_path / "copy").why == original.why
    assert old in text
    (tmp_path / "copy" / "zoo.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"zoo\.toml") as refused:
        catalogue.read(tmp_path / "copy")
    assert says in str(refused.value)


def test_two_clean_runs_end_as_written(program: Program, make_database: Callable[..., str], tmp_path: Path) -> None:
    """As a process of its own it ends as ``[[end]]`` says, and a second run makes of it what ``rerun`` says."""
    dsn = make_database()
    with Cage(program, dsn, tmp_path, is_forked=False) as cage:
        for query, rows in program.ends:
            found = [[int(value) if not isinstance(value, str) else value for value in row] for row in ask(dsn, query)]
            assert found == rows, query
        verdict, story = cage.run_again("a clean run")
        assert verdict == program.rerun, story
        assert cage.clean != cage.base, "a program that changes nothing cannot be judged"
        assert {place.kind for place, _ in cage.points} >= {"startup"}
        for point in program.points:
            assert any(point.statement.search(place.name) for place, _ in cage.points), f"{point.statement} is not met"


def ask(dsn: str, query: str) -> list[tuple[object, ...]]:
    """Ask the database."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def table(*rows: tuple[object, ...], key: tuple[int, ...] = (0,)) -> dict[str, books.Table]:
    """Make a state of one table."""
    return {"account": books.Table(books.Counter(rows), key)}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ((("ann", 150), ("bob", 250)), "SAFE"),
        ((("ann", 200), ("bob", 250)), "DOUBLED"),
        ((("ann", 100), ("bob", 250)), "LOST"),
        ((("ann", 165), ("bob", 250)), "DOUBLED"),
        ((("ann", 140), ("bob", 250)), "CHANGED"),
        ((("ann", 200), ("bob", 200)), "DOUBLED"),
        ((("ann", 150), ("bob", 250), ("cy", 1)), "DOUBLED"),
        ((("ann", 150),), "LOST"),
        ((("ann", 150), ("cy", 250)), "CHANGED"),
    ],
)
def test_the_oracle_tells_the_verdicts_apart(found: tuple[tuple[object, ...], ...], verdict: str) -> None:
    """From 100 and 200 a clean run makes 150 and 250."""
    base, clean = table(("ann", 100), ("bob", 200)), table(("ann", 150), ("bob", 250))
    assert books.verdict(base, clean, table(*found)) == verdict


def test_this_interpreter_runs_the_python_programs() -> None:
    """``python`` on the PATH may be any other."""
    assert command_of(("python", "x.py"))[0] == sys.executable
