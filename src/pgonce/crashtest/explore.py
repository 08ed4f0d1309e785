"""Fail the program at each point in each way, run it again, and judge what is there then."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pgonce.crashtest.baseline import Baseline, Rules
from pgonce.crashtest.examine import examine
from pgonce.crashtest.faults import Blow, Fault, applies, blows
from pgonce.crashtest.lane import Lane
from pgonce.crashtest.limits import RERUNS
from pgonce.crashtest.points import Met
from pgonce.crashtest.verdict import Evidence, Verdict, judge

SURVIVED = "the program survived the fault and said that all is well"
TOO_EARLY = "when it said so, that was not so"


@dataclass(frozen=True, slots=True)
class Trial:
    """One point and one blow, to be tried."""

    met: Met
    blow: Blow

    @property
    def name(self) -> str:
        """Return what ``--only`` takes."""
        return f"{self.met.point.id}:{self.blow.fault.value}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a trial showed: the verdict, why, how each run ended, and what differed."""

    trial: Trial
    verdict: Verdict
    why: str
    evidence: Evidence = field(default_factory=Evidence)
    exits: tuple[str, ...] = ()
    output: str = ""
    took_s: float = 0.0
    own_s: float = 0.0
    notes: tuple[str, ...] = ()


def trials(met: Iterable[Met], faults: Sequence[Fault], only: frozenset[str] = frozenset()) -> list[Trial]:
    """List what is to be tried: every fault that can happen at a point; ``only`` are ids, or ids with a fault."""
    found = []
    for one in met:
        for fault in faults:
            named = {one.point.id, f"{one.point.id}:{fault.value}"}
            if applies(fault, one.boundary) and (not only or not named.isdisjoint(only)):
                found += [Trial(one, blow) for blow in blows(fault)]
    return found


def rerun_without_fault(lane: Lane, baseline: Baseline, rules: Rules) -> Baseline:
    """Run the program once more on the state of a clean run: the second baseline. The lane holds such a state."""
    ran = lane.run(baseline.run_s_max)
    is_well = ran.ended.exit_code in rules.ok_exits
    evidence = examine(lane, baseline, rules, ended_well=is_well, timed_out=ran.ended.timed_out)
    return dataclasses.replace(baseline, again=judge(evidence), again_evidence=evidence, again_output=ran.output)


def explore(
    lane: Lane, baseline: Baseline, rules: Rules, todo: Iterable[Trial], *, reruns: int = RERUNS
) -> Iterator[Result]:
    """Try one after the other and yield what each showed."""
    for trial in todo:
        yield attempt(lane, baseline, rules, trial, reruns=reruns)


def attempt(lane: Lane, baseline: Baseline, rules: Rules, trial: Trial, *, reruns: int = RERUNS) -> Result:
    """Reset, strike at the point, run again until the program says that all is well, and judge.

    A program that says so in the faulted run itself is run once more, too: somebody may. If its work was not done when
    it said so, that is noted, since then nobody has a reason to run it again.
    """
    began = time.monotonic()
    lane.reset()
    first = lane.run(baseline.run_s_max, point=trial.met.point, blow=trial.blow)
    took_s = first.ended.took_s
    if not first.struck:
        why = "the program did not come to this point in this run"
        return Result(trial, Verdict.UNREACHED, why, exits=(_exit(first.ended.exit_code),), output=first.output)
    exits, notes = [_exit(first.ended.exit_code)], []
    is_well = first.ended.exit_code in rules.ok_exits
    if is_well:
        notes.append(SURVIVED)
        evidence = examine(lane, baseline, rules, ended_well=True, timed_out=False)
        if judge(evidence)[0].is_unsafe:
            notes.append(f"{TOO_EARLY}: {judge(evidence)[1]}")
    elif first.ended.timed_out:
        notes.append("the program hung after the fault, and was ended by the time limit")
    if first.backends_ended:
        notes.append(f"{first.backends_ended} backends of the failed run had to be ended")
    last = first
    for _ in range(max(1, reruns)):
        last = lane.run(baseline.run_s_max)
        took_s += last.ended.took_s
        exits.append(_exit(last.ended.exit_code))
        if last.ended.exit_code in rules.ok_exits:
            break
    ended_well = last.ended.exit_code in rules.ok_exits
    evidence = examine(lane, baseline, rules, ended_well=ended_well, timed_out=last.ended.timed_out)
    verdict, why = judge(evidence)
    own_s = time.monotonic() - began - took_s
    return Result(
        trial, verdict, why, evidence, tuple(exits), last.output, time.monotonic() - began, own_s, tuple(notes)
    )


def _exit(code: int | None) -> str:
    return "ended by the time limit" if code is None else f"killed by signal {-code}" if code < 0 else f"exit {code}"
