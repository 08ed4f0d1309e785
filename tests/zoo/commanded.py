"""The programs of the zoo under `pgonce crashtest` itself: is its verdict at each point the one that is written down?

PYTHONPATH=tests python -m zoo.commanded [--faults cut-before,kill] [--sample 2] [--jobs 2] [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgonce.crashtest.baseline import Rules
from pgonce.crashtest.conduct import conduct
from pgonce.crashtest.explore import Result
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.lane import Command
from pgonce.crashtest.plan import Plan
from pgonce.crashtest.points import Point
from pgonce.crashtest.report import Report
from pgonce.errors import Inconclusive
from zoo import running
from zoo.catalogue import FAULTS, TIME_LIMIT_S, Program, programs, worst
from zoo.failing import Place, name_of

# The zoo's limits are those of programs that are forked from one which has imported everything; on a busy machine a
# program that is started anew takes a multiple of that.
PATIENCE = 4


@dataclass(frozen=True, slots=True)
class Judged:
    """What the command said of a program, and wherever that is not what the zoo says."""

    report: Report
    mismatches: tuple[str, ...]

    def row(self, program: Program, took_s: float) -> str:
        """Return a line of the table."""
        found = [_short(self.report.worst_of(fault)) for fault in Fault]
        words = [*found, self.report.baseline.again[0].value]
        cells = " ".join(f"{word:8}" for word in words)
        counts = f"{len(self.report.points):4} {len(self.report.results):5}"
        return f"{program.name:24} {cells} {counts} {len(self.mismatches):6} {took_s:7.1f}"


def judge(
    program: Program,
    folder: Path,
    *,
    faults: Sequence[Fault] = tuple(Fault),
    per_statement: int | None = None,
    only: frozenset[str] = frozenset(),
    jobs: int = 1,
) -> Judged:
    """Test a program as `pgonce crashtest` does. ``folder`` is for its working folder and its setup.

    With ``per_statement`` or ``only`` not every point is tried, and then a fault's worst verdict is not compared.
    """
    program.lay(folder / "program")
    environment = running.environment_for("")
    limit_s = program.time_limit_s * PATIENCE if program.time_limit_s < TIME_LIMIT_S else None
    report = conduct(
        Plan(
            command=Command(
                argv=tuple(running.command_of(program.command)),
                folder=folder / "program",
                assignments=tuple(f"{name}={environment[name]}" for name in ("PATH", "NODE_PATH")),
            ),
            setup=tuple(_setup(program, folder)),
            rules=Rules(ignore=program.ignore, log_tables=program.log_tables),
            faults=tuple(faults),
            per_statement=per_statement,
            only=only,
            limit_s=limit_s,
            jobs=jobs,
        ),
        tell=lambda _: None,
        on_result=lambda *_: None,
    )
    is_whole = per_statement is None and not only
    return Judged(report, tuple(_mismatches(program, report, is_whole=is_whole)))


def _setup(program: Program, folder: Path) -> Iterator[Path]:
    if program.before_setup:
        made = subprocess.run(running.command_of(program.before_setup), capture_output=True, text=True, check=True)
        (folder / "before.sql").write_text(made.stdout, encoding="utf-8")
        yield folder / "before.sql"
    (folder / "setup.sql").write_text(program.setup, encoding="utf-8")
    yield folder / "setup.sql"


def _mismatches(program: Program, report: Report, *, is_whole: bool) -> Iterator[str]:
    """Compare every trial with what is written of its point, then each fault's worst, then the plain second run."""
    places = _places(report)
    for result in report.results:
        place = places[result.trial.met.point]
        fault, when = result.trial.blow.fault.value, "after" if result.trial.blow.is_after else "before"
        expected = program.expected(fault, when, place.name, place.nth, kind=place.kind)
        if result.verdict.value not in expected:
            yield f"{_told(result, place)} (expected {' or '.join(expected)})"
    for fault in report.faults if is_whole else ():
        found = worst([one.verdict.value for one in report.results if one.trial.blow.fault is fault and _is_known(one)])
        if found != program.expect[fault.value]:
            yield f"{fault.value}: the worst is {found} (expected {program.expect[fault.value]})"
    again, why = report.baseline.again
    if again.value != program.rerun:
        yield f"a second run: {again.value} {why} (expected {program.rerun})"


def _places(report: Report) -> dict[Point, Place]:
    """Name the points of the clean run as the zoo does: by the statement as it is, and the how many-th of it."""
    counts: Counter[tuple[str, str]] = Counter()
    found = {}
    for met in report.baseline.met:
        name, kind = name_of(met.boundary), met.boundary.kind.value
        counts[name, kind] += 1
        found[met.point] = Place(name, counts[name, kind], kind)
    return found


def _is_known(result: Result) -> bool:
    return result.verdict.value != "UNREACHED"


def _told(result: Result, place: Place) -> str:
    blow, exits = result.trial.blow.name, ", then ".join(result.exits)
    return (
        f"{blow} at {place.kind} {place.name!r} #{place.nth}: {result.verdict.value}, {result.why}; {exits}"
        f" [--only {result.trial.name}]"
    )


def _short(verdict: object) -> str:
    return str(getattr(verdict, "value", "-"))


def main() -> int:
    """Test the programs that are named, all if none is, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which faults, with commas between them")
    parser.add_argument("--sample", type=int, help="of a statement that comes again and again, only so many")
    parser.add_argument("--only", default="", help="only these points, as a mismatch names them, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="servers at work at once")
    options = parser.parse_args()
    faults = [Fault(name) for name in options.faults.split(",")]
    only = frozenset(filter(None, options.only.split(",")))
    began, wrong = time.monotonic(), 0
    heads = " ".join(f"{fault.value[:8]:8}" for fault in Fault)
    print(f"{'program':24} {heads} {'rerun':8} {'points':>4} {'tried':>5} {'wrong':>5} {'s':>6}")
    for program in programs(*options.names):
        if missing := program.missing():
            print(f"{program.name:24} skipped, {missing} is not there")
            continue
        wrong += _tell(program, faults=faults, per_statement=options.sample, only=only, jobs=options.jobs)
    print(f"{wrong} unexpected, {time.monotonic() - began:.0f} s")
    return 3 if wrong else 0


def _tell(
    program: Program, *, faults: Sequence[Fault], per_statement: int | None, only: frozenset[str], jobs: int
) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        try:
            judged = judge(program, Path(folder), faults=faults, per_statement=per_statement, only=only, jobs=jobs)
        except Inconclusive as error:
            print(f"{program.name:24} could not be tested: {error}", flush=True)
            return 1
    print(judged.row(program, time.monotonic() - began), flush=True)
    for line in judged.mismatches:
        print(f"  {line}", flush=True)
    return len(judged.mismatches)


if __name__ == "__main__":
    sys.exit(main())
