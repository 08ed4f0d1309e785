"""Play scenarios, one after the other, each on a fresh stage."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psycopg

from pgonce.errors import ConfigurationError, Inconclusive
from pgonce.lab.home import Lab
from pgonce.lab.scenario import Act, Line, Scenario
from pgonce.lab.scenarios import SCENARIOS
from pgonce.lab.stage import Stage, Step, stage


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario that was played: its lines, its time line in seconds, and how long it took."""

    scenario: Scenario
    wrong: bool
    lines: tuple[Line, ...]
    steps: tuple[Step, ...]
    took_s: float

    @property
    def exact(self) -> bool:
        """Tell whether the money is as it should be in every line."""
        return not any(line.damage for line in self.lines)

    def texts(self) -> list[str]:
        """Return the lines as they are printed."""
        name = f"{self.scenario.name} (wrong)" if self.wrong else self.scenario.name
        return [line.text(name) for line in self.lines]


def chosen(names: Sequence[str]) -> list[Scenario]:
    """Return the scenarios of these names, all if there are none. Raises ConfigurationError for an unknown name."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"there is no scenario {unknown[0]!r}; there are: {', '.join(known)}.")
    return [known[name] for name in names] or list(SCENARIOS)


def play(lab: Lab, scenario: Scenario, *, wrong: bool = False, tell: Callable[[str], None] = lambda _: None) -> Played:
    """Play one scenario, and hand each line on as soon as it is there.

    Raises Inconclusive if a barrier was not seen, if the server or a connection failed in a way that is no part of the
    scenario, or if a line of the wrong worker has no damage, which is not handed on then. Raises ConfigurationError
    while another process plays in this lab. Safe to re-run: its database is made for it and dropped afterwards.
    """
    act = scenario.wrong if wrong else scenario.right
    if act is None:
        raise ConfigurationError(f"the scenario {scenario.name!r} has no wrong worker. Run it without --wrong.")
    began_s = time.monotonic()
    lines: list[Line] = []
    with stage(lab, scenario.name, limited=scenario.limited) as on:
        for line in _acted(act, on, scenario.name):
            if wrong and not line.damage:
                raise Inconclusive(
                    f"the wrong worker of {scenario.name!r} did no damage this time, so it shows nothing. Run it again."
                )
            lines.append(line)
            tell(line.text(f"{scenario.name} (wrong)" if wrong else scenario.name))
    return Played(scenario, wrong, tuple(lines), tuple(on.steps), time.monotonic() - began_s)


def _acted(act: Act, on: Stage, name: str) -> Iterator[Line]:
    """Yield the lines of an act; an error that the act did not provide for makes it inconclusive."""
    try:
        yield from act(on)
    except psycopg.Error as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise Inconclusive(
            f"the scenario {name!r} met an error that is no part of it, so it shows nothing: "
            f"{error.sqlstate or 'no SQLSTATE'}: {said[0]}. Run it again on a machine that is less busy."
        ) from error
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise Inconclusive(
            f"the scenario {name!r} waited in vain for a worker to end, so it shows nothing. "
            "Run it again on a machine that is less busy."
        ) from error
