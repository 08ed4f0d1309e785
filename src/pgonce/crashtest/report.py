"""What a whole test showed, and the sentence that sums it up."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pgonce.crashtest.baseline import Baseline
from pgonce.crashtest.explore import TOO_EARLY, Result
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.points import Met
from pgonce.crashtest.verdict import Verdict, worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a test showed. ``left_out`` counts trials that sampling or a limit left out.

    ``points_untried`` counts the points that a bound left out or that were not come to; ``stopped_by`` is the exit code
    of a test that was asked to end before it had made the ``trials_chosen``, else 0.
    """

    argv: tuple[str, ...]
    baseline: Baseline
    results: tuple[Result, ...]
    points_met: int
    left_out: int
    took_s: float
    seed: int
    faults: tuple[Fault, ...]
    server: str
    not_isolated_because: str = ""
    dropped: tuple[str, ...] = ()
    points_untried: int = 0
    stopped_by: int = 0
    trials_chosen: int = 0

    @property
    def command(self) -> str:
        """Return the command as one types it."""
        return shlex.join(self.argv)

    @property
    def points(self) -> dict[str, list[Result]]:
        """Return the results of each point that was tried, by its id, in the order of the program."""
        found: dict[str, list[Result]] = {}
        for result in self.results:
            found.setdefault(result.trial.met.point.id, []).append(result)
        return found

    @property
    def unsafe(self) -> tuple[Result, ...]:
        """Return the results that prove a fault of the program."""
        return tuple(result for result in self.results if result.verdict.is_unsafe)

    @property
    def unreached(self) -> tuple[Result, ...]:
        """Return the trials that could not be made."""
        return tuple(result for result in self.results if result.verdict is Verdict.UNREACHED)

    @property
    def is_proven_unsafe(self) -> bool:
        """Say whether a fault of the program was shown, with an injected fault or by simply running twice."""
        return bool(self.unsafe) or self.baseline.again[0].is_unsafe

    @property
    def is_safe(self) -> bool:
        """Say whether everything that was to be tried was tried, and was safe."""
        return bool(self.results) and not self.stopped_by and not self.is_proven_unsafe and not self.unreached

    @property
    def sentence(self) -> str:
        """Sum it up."""
        points = self.points
        safe = sum(all(result.verdict is Verdict.SAFE for result in found) for found in points.values())
        told = f"SAFE at {safe} of {len(points)} points tried"
        if self.is_proven_unsafe:
            names = [result.verdict for result in self.unsafe] or [self.baseline.again[0]]
            told = f"NOT SAFE ({worst(names).value}): {told}"
        if self.unreached:
            count = len({result.trial.met.point.id for result in self.unreached})
            told += f"; {count} points were not reached, and that is not SAFE"
        if self.points_untried:
            told += f"; {self.points_untried} more {'was' if self.points_untried == 1 else 'were'} not tried"
        if self.too_early and not self.is_proven_unsafe:
            told += (
                f"; but in {self.too_early} trials it said that all is well before its work was done, and nobody would "
                "have run it again"
            )
        if self.stopped_by:
            told = f"stopped as asked after {len(self.results)} of {self.trials_chosen} trials. {told}"
        return told

    @property
    def too_early(self) -> int:
        """Count the trials in which the program said that all is well before it was, and a further run made it so."""
        return sum(
            any(note.startswith(TOO_EARLY) for note in result.notes)
            for result in self.results
            if not result.verdict.is_unsafe
        )

    def verdicts(self, point_id: str) -> dict[Fault, Verdict]:
        """Return the worst verdict of each fault at a point."""
        found: dict[Fault, Verdict] = {}
        for result in self.points[point_id]:
            fault = result.trial.blow.fault
            found[fault] = worst([result.verdict, *([found[fault]] if fault in found else [])])
        return found

    def worst_of(self, fault: Fault) -> Verdict | None:
        """Return the worst verdict of a fault over all points, None if it was not tried."""
        found = [result.verdict for result in self.results if result.trial.blow.fault is fault]
        return worst(found) if found else None

    def met(self, point_id: str) -> Met:
        """Return a point as it was met."""
        return self.points[point_id][0].trial.met

    def replay(self, result: Result) -> str:
        """Say how to try this alone."""
        return f"the same command with --only {result.trial.name}"
