"""All scenarios, in the order in which they are played."""

from __future__ import annotations

from pgonce.lab import experiment
from pgonce.lab.scenario import Scenario
from pgonce.lab.scenarios import (
    check_then_act,
    crash,
    deadlock,
    file_atomic,
    kill9,
    lost_commits,
    netcut,
    ssi,
    stale_read,
    sum_once,
    swallowed,
)

SCENARIOS: tuple[Scenario, ...] = (
    experiment.SCENARIO,
    check_then_act.SCENARIO,
    ssi.SCENARIO,
    deadlock.SCENARIO,
    netcut.SCENARIO,
    kill9.SCENARIO,
    stale_read.SCENARIO,
    swallowed.SCENARIO,
    crash.SCENARIO,
    lost_commits.SCENARIO,
    sum_once.SCENARIO,
    file_atomic.SCENARIO,
)
