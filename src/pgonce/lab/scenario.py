"""What a scenario is, and how it is judged: by the money that is there against the money that should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pgonce.lab.stage import Stage


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a scenario's result: facts that were seen, and the cents that there are and that there should be."""

    facts: tuple[tuple[str, str], ...]
    cents: int
    cents_right: int
    label: str = ""

    @property
    def damage(self) -> str:
        """Say what is wrong with the money, nothing if it is exact."""
        if self.cents == self.cents_right:
            return ""
        if self.cents > self.cents_right:
            return f"{self.cents - self.cents_right} cents too many"
        return f"{self.cents_right - self.cents} cents missing"

    def text(self, name: str) -> str:
        """Write the line as it is printed."""
        if self.label:
            return self.label
        facts = " ".join(f"{key}={value}" for key, value in self.facts)
        verdict = f"WRONG: {self.damage}" if self.damage else "exact"
        return f"{name}: {facts} sum={self.cents} of {self.cents_right}: {verdict}"


def line(cents: int, cents_right: int, **facts: object) -> Line:
    """Make a line; the facts are shown in the order given."""
    return Line(tuple((key, str(value)) for key, value in facts.items()), cents, cents_right)


def verbatim(text: str) -> Line:
    """Make a line whose words are fixed; whoever makes it has checked what they say."""
    return Line((), 0, 0, text)


Act = Callable[[Stage], Iterable[Line]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """An experiment: what it asks, what the right worker and the wrong one do, and both as they are played."""

    name: str
    title: str
    question: str
    right_way: str
    right: Act
    wrong_way: str = ""
    wrong: Act | None = None
    stops_server: bool = False
    """Whether it crashes the server or sets it back, which nobody else's lab should suffer."""
    limited: bool = False
    """Whether its sessions give up after 7 s, and after 5 s at a lock, as the experiment says. The others have no such
    limits: on a busy machine a barrier takes longer than that, and an actor must not go away meanwhile."""
