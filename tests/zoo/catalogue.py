"""The zoo: programs right and wrong, each with what happens to its money when it is failed and run again.

Every folder beside this file with a ``zoo.toml`` is a program. Its keys:

- ``why``: a paragraph, what is right or wrong about it.
- ``command``: ``python`` and ``pgonce`` mean those of the interpreter that runs the tests. It finds its database by
  PGHOST, PGPORT, PGUSER and PGDATABASE, and runs in a working folder: a copy of its folder here, without zoo.toml.
- ``setup``: the SQL file that makes the base; ``before_setup``: a command whose output is SQL to be run before it.
- ``needs``: what must be there, else the program is skipped: ``python:MODULE``, ``program:NAME``,
  ``npm:PACKAGE``, ``header:FILE`` (of C).
- ``log_tables``: tables that every run may add to; ``ignore``: columns ("table.column") that tell of the way to the
  end, not of the end. A tool has to be told both. ``varies``: columns that no two runs fill alike; a tool has to find
  out by itself.
- ``rerun``: the verdict of a second run after a whole first one, without any fault.
- ``time_limit_s``: when to give a run up. ``[[end]]``: a query and its rows after one clean run.
- ``[expect]``: for each fault the worst verdict over all points; ``[[expect.point]]``: where that is. A point that no
  entry is about is SAFE.

A point of a program is a message on which the server acts, by its name, and as the n-th of that name and kind in the
run. The name is the statement as the proxy normalises it, or ``<startup>``, ``<copy done>``, ``<terminate>``,
``<sync>`` (of nothing). An entry has ``statement`` (a regular expression, case ignored), ``when`` (before: the server
never sees the message; after: it acted, and its answer is lost; both), ``verdict``, and may have ``nth`` and
``faults``. With ``unsure`` SAFE is right as well: the program does not wait for the server there, and may be further on
already.

A tool may count each Execute as a point of its own (``kind`` execute). Nothing is committed before the Sync then, so
what is expected after such an Execute is what is expected before it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
NODE_MODULES = ROOT.parents[1] / ".make" / "zoo" / "node_modules"

HEADERS = Path("/usr/include")

BOTH = ("before", "after")
FAULTS = {
    "cut-before": ("before",),
    "cut-after": ("after",),
    "serialization": ("before",),
    "kill": BOTH,
    "terminate": BOTH,
    "crash": BOTH,
}
"""What can be done to a program, and when in relation to the server's acting on the message."""

VERDICTS = ("SAFE", "CHANGED", "LOST", "DOUBLED", "STUCK")
"""From the best to the worst. Where several hold, the worst is told."""

_KEYS = frozenset(
    [
        "why",
        "command",
        "setup",
        "before_setup",
        "needs",
        "log_tables",
        "ignore",
        "varies",
        "rerun",
        "time_limit_s",
        "end",
        "expect",
    ]
)
_POINT_KEYS = frozenset(["statement", "when", "verdict", "nth", "faults", "unsure"])

# Well above what any of the programs needs on a busy machine.
TIME_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Point:
    """An entry of what is expected: which points it is about, and their verdict."""

    statement: re.Pattern[str]
    when: tuple[str, ...]
    verdict: str
    nth: tuple[int, ...]
    faults: tuple[str, ...]
    unsure: bool

    def covers(self, fault: str, when: str, name: str, nth: int) -> bool:
        """Say whether this entry is about a fault at a point."""
        return (
            fault in self.faults
            and when in self.when
            and (not self.nth or nth in self.nth)
            and self.statement.search(name) is not None
        )


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the zoo."""

    name: str
    folder: Path
    why: str
    command: tuple[str, ...]
    setup: str
    before_setup: tuple[str, ...]
    needs: tuple[str, ...]
    log_tables: frozenset[str]
    ignore: frozenset[str]
    varies: frozenset[str]
    rerun: str
    time_limit_s: float
    ends: tuple[tuple[str, list[list[object]]], ...]
    expect: dict[str, str]
    points: tuple[Point, ...]

    def expected(self, fault: str, when: str, name: str, nth: int, *, kind: str = "") -> tuple[str, ...]:
        """Return the verdicts that are right for a fault at a point; what no entry is about is SAFE."""
        moment = "before" if kind == "execute" else when
        for point in self.points:
            if point.covers(fault, moment, name, nth):
                return (point.verdict, "SAFE") if point.unsure else (point.verdict,)
        return ("SAFE",)

    def missing(self) -> str:
        """Say what the program needs and is not there; empty if nothing is missing."""
        return ", ".join(need for need in self.needs if not _is_there(need))

    def lay(self, folder: Path) -> None:
        """Make the program's working folder."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("zoo.toml", "__pycache__"))


def programs(*names: str) -> list[Program]:
    """Read the programs that are named, the whole zoo if none is."""
    folders = [path.parent for path in sorted(ROOT.glob("*/zoo.toml"))]
    return [read(folder) for folder in folders if not names or folder.name in names]


def read(folder: Path) -> Program:
    """Read one program; raises ValueError naming what is not well-formed."""
    with (folder / "zoo.toml").open("rb") as file:
        table = tomllib.load(file)
    wrong = list(_findings(folder, table))
    if wrong:
        raise ValueError(f"{folder.name}/zoo.toml: {'; '.join(wrong)}")
    expect = {fault: table["expect"][fault] for fault in FAULTS}
    return Program(
        name=folder.name,
        folder=folder,
        why=" ".join(table["why"].split()),
        command=tuple(table["command"]),
        setup=(folder / table["setup"]).read_text(),
        before_setup=tuple(table.get("before_setup", ())),
        needs=tuple(table.get("needs", ())),
        log_tables=frozenset(table.get("log_tables", ())),
        ignore=frozenset(table.get("ignore", ())),
        varies=frozenset(table.get("varies", ())),
        rerun=table["rerun"],
        time_limit_s=table.get("time_limit_s", TIME_LIMIT_S),
        ends=tuple((end["query"], end["rows"]) for end in table["end"]),
        expect=expect,
        points=tuple(_point(entry, expect) for entry in table["expect"].get("point", ())),
    )


def _point(entry: dict[str, Any], expect: dict[str, str]) -> Point:
    """An entry without ``faults`` is about every fault that is expected to do any harm."""
    named = tuple(entry.get("faults", (fault for fault, verdict in expect.items() if verdict != "SAFE")))
    when = BOTH if entry["when"] == "both" else (entry["when"],)
    statement = re.compile(entry["statement"], re.IGNORECASE)
    return Point(statement, when, entry["verdict"], tuple(entry.get("nth", ())), named, entry.get("unsure", False))


def _findings(folder: Path, table: dict[str, Any]) -> Iterator[str]:
    for key in ("why", "command", "setup", "rerun", "end", "expect"):
        if not table.get(key):
            yield f"{key} is missing"
            return
    yield from (f"{key} is not known" for key in table.keys() - _KEYS)
    if not (folder / table["setup"]).is_file():
        yield f"there is no {table['setup']}"
    expect = table["expect"]
    yield from (f"expect.{key} is not known" for key in expect.keys() - FAULTS.keys() - {"point"})
    yield from (f"expect.{fault} is no verdict" for fault in FAULTS if expect.get(fault) not in VERDICTS)
    if table["rerun"] not in VERDICTS:
        yield "rerun is no verdict"
    for number, entry in enumerate(expect.get("point", ()), start=1):
        yield from (f"point {number}: {text}" for text in _point_findings(entry))
    yield from _disagreements(expect)


def _point_findings(entry: dict[str, Any]) -> Iterator[str]:
    yield from (f"{key} is not known" for key in entry.keys() - _POINT_KEYS)
    if entry.get("when") not in (*BOTH, "both"):
        yield "when is before, after or both"
    if entry.get("verdict") not in VERDICTS:
        yield "there is no such verdict"
    yield from (f"{fault} is no fault" for fault in entry.get("faults", ()) if fault not in FAULTS)
    try:
        re.compile(entry.get("statement", "("))
    except re.error as error:
        yield f"statement: {error}"


def _disagreements(expect: dict[str, Any]) -> Iterator[str]:
    """The word for a fault has to be the worst one of its points."""
    if any(expect.get(fault) not in VERDICTS for fault in FAULTS):
        return
    entries = [entry for entry in expect.get("point", ()) if not list(_point_findings(entry))]
    points = [_point(entry, {fault: expect[fault] for fault in FAULTS}) for entry in entries]
    for fault, moments in FAULTS.items():
        mine = [point.verdict for point in points if fault in point.faults and set(point.when) & set(moments)]
        found = worst(mine)
        if found != expect[fault]:
            yield f"expect.{fault} is {expect[fault]}, but the worst of its points is {found}"


def worst(verdicts: Sequence[str]) -> str:
    """Return the worst of several verdicts; SAFE of none."""
    return max(verdicts, key=VERDICTS.index, default="SAFE")


def _is_there(need: str) -> bool:
    kind, _, name = need.partition(":")
    if kind == "python":
        return importlib.util.find_spec(name) is not None
    if kind == "program":
        return shutil.which(name) is not None
    if kind == "npm":
        places = [NODE_MODULES, *map(Path, filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)))]
        return any((place / name / "package.json").is_file() for place in places)
    if kind == "header":
        return (HEADERS / name).is_file()
    raise ValueError(f"{need!r}: what is needed begins with python:, program:, npm: or header:")
