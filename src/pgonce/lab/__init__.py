"""The lab: a throw-away server on which experiments show what a second run does, done right and done wrong.

Read in this order: ``home`` (where a lab lies, made and removed), ``marker`` and ``envfile`` (how it is recognised and
found again), ``stage`` (connections, barriers and the time line of a scenario), ``experiment`` and ``scenarios`` (what
is shown), ``play`` (run them), ``report`` (the page).
"""

from __future__ import annotations

from pgonce.lab.home import Lab, clean, find, throw_away, up
from pgonce.lab.orders import seed, versions, whoami
from pgonce.lab.play import Played, play
from pgonce.lab.scenario import Scenario
from pgonce.lab.scenarios import SCENARIOS
from pgonce.lab.shell import shell_functions

__all__ = [
    "SCENARIOS",
    "Lab",
    "Played",
    "Scenario",
    "clean",
    "find",
    "play",
    "seed",
    "shell_functions",
    "throw_away",
    "up",
    "versions",
    "whoami",
]
