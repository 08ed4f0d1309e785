"""Keep what was tried in a file, one line a trial, so that a test that was stopped can go on.

What was found goes on to hold only for the same program, on the same state, compared in the same way. A set-up with a
clock or random numbers in it makes another state at every start; which columns those are shows when it is made twice,
and by those two starts are not told apart. Each trial is compared with a clean run of its own start anyway.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from pgonce.crashtest import state as states
from pgonce.crashtest import workdir
from pgonce.crashtest.asjson import evidence_from, result_as_dict
from pgonce.crashtest.baseline import Baseline, Rules, clean_run, mark_of
from pgonce.crashtest.explore import Result, Trial
from pgonce.crashtest.lane import Lane
from pgonce.crashtest.shape import Shape
from pgonce.crashtest.verdict import Verdict
from pgonce.errors import ConfigurationError

# Lines of another form are not read.
VERSION = 2

Columns = dict[str, list[str]]

WHAT = {
    "folder": "another working folder (a program of another content)",
    "rules": "another way to compare (options, or other columns that differ by themselves)",
    "schema": "another schema",
}


class Ledger:
    """The results of earlier starts of the same test; without a file it remembers nothing."""

    def __init__(self, path: Path | None, argv: Sequence[str]) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        self._head: dict[str, Any] = {"pgonce_crashtest": VERSION, "command": list(argv)}
        self._found: dict[str, Any] | None = None
        if path is None:
            return
        try:
            lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
        except OSError as error:
            raise ConfigurationError(f"cannot use {str(path)!r} to resume: {error.strerror}") from error
        if lines == [""]:
            return
        self._found = _parsed(lines[0]) or {}
        if {name: self._found.get(name) for name in self._head} != self._head:
            raise ConfigurationError(
                f"{str(path)!r} keeps the results of another command, or of another release; "
                "remove it, or name another file"
            )
        for line in lines[1:]:
            entry = _parsed(line)
            if entry is not None:  # a line that was cut short by a kill is tried again
                self._known[f"{entry['point']} {entry['blow']}"] = entry

    @property
    def moved(self) -> Columns | None:
        """Return the columns that the first start found to be different at every set-up; None at the first start."""
        return self._found.get("moved") if self._found is not None else None

    def begin(self, made_of: Mapping[str, Any], *, moved: Columns) -> None:
        """Write down what the results depend on, or raise ConfigurationError if it is not the same any more."""
        if self._path is None:
            return
        if self._found is None:
            try:
                text = json.dumps({**self._head, "made_of": made_of, "moved": moved})
                self._path.write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise ConfigurationError(f"cannot use {str(self._path)!r} to resume: {error.strerror}") from error
            return
        earlier = self._found.get("made_of", {})
        told = [text for name, text in WHAT.items() if made_of[name] != earlier.get(name)]
        here, there = made_of["tables"], earlier.get("tables", {})
        tables = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        if tables:
            told.append(
                f"another state (table {', '.join(tables)}: if its set-up or its program writes the date or the second "
                "there, let it write a fixed one)"
            )
        if told:
            raise ConfigurationError(
                f"{str(self._path)!r} keeps the results of {', and of '.join(told)}; remove it, or name another file"
            )

    def known(self, trial: Trial) -> Result | None:
        """Return what an earlier start found, if it tried this."""
        entry = self._known.get(f"{trial.met.point.id} {trial.blow.name}")
        if entry is None or entry["verdict"] == Verdict.UNREACHED.value:
            return None
        return Result(
            trial,
            Verdict(entry["verdict"]),
            entry["why"],
            evidence_from(entry),
            tuple(entry["exits"]),
            entry["output"],
            entry["took_s"],
            entry["own_s"],
            tuple(entry["notes"]),
        )

    def keep(self, result: Result) -> None:
        """Write a result down."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result_as_dict(result)) + "\n")


def moved_by_setup(first: Lane, other: Lane, baseline: Baseline, rules: Rules, *, limit_s: float | None) -> Columns:
    """Make a clean run on a state that was set up anew; return the columns in which it differs from the first one."""
    clean_run(other, rules, limit_s=limit_s)
    other.base.keep_as_clean()
    moved: dict[str, set[str]] = {}
    for here, there in ((first.base.pristine, other.base.pristine), (first.base.clean, other.base.clean)):
        with first.base.connected(here) as one, other.base.connected(there) as another:
            for name, columns in _differing(one, another, baseline).items():
                moved.setdefault(name, set()).update(columns)
    return {name: sorted(columns) for name, columns in sorted(moved.items())}


def _differing(one: psycopg.Connection, another: psycopg.Connection, baseline: Baseline) -> Columns:
    found: Columns = {}
    pair = [states.read_state(run, baseline.shape, only=baseline.compared) for run in (one, another)]
    for name in pair[0].tables.keys() & pair[1].tables.keys():
        if mark_of(pair[0], name) != mark_of(pair[1], name):
            table = pair[0].catalogue[name]
            mine, theirs = states.column_digests(one, table), states.column_digests(another, table)
            found[name] = [column for column in mine if mine[column] != theirs.get(column)]
    return found


def made_of(lane: Lane, baseline: Baseline, rules: Rules, assignments: Sequence[str], moved: Columns) -> dict[str, Any]:
    """Return digests of everything that the results depend on, without the columns that each set-up moves."""
    left_out = {name: frozenset(columns) for name, columns in moved.items()}
    for name, columns in baseline.shape.left_out.items():
        left_out[name] = left_out.get(name, frozenset()) | columns
    shape = dataclasses.replace(baseline.shape, left_out=left_out)
    told = [sorted(part) if isinstance(part, frozenset) else part for part in dataclasses.astuple(rules)]
    marks = [_marks(lane, database, shape, baseline) for database in (lane.base.pristine, lane.base.clean)]
    return {
        "folder": workdir.fingerprint(lane.pristine),
        "rules": _digest((told, sorted(baseline.left_out), baseline.references, tuple(assignments))),
        "schema": _digest(sorted(baseline.before.schema.items())),
        "tables": {name: _digest([mark.get(name) for mark in marks]) for name in sorted(baseline.compared)},
    }


def _marks(lane: Lane, database: str, shape: Shape, baseline: Baseline) -> dict[str, tuple[int, str] | None]:
    with lane.base.connected(database) as connection:
        state = states.read_state(connection, shape, only=baseline.compared)
    return {name: mark_of(state, name) for name in state.tables}


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
