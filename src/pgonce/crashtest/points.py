"""Points: the places in a program where it can be failed, recognised again in the next run by what they are.

A point is never a number in the order of all messages: another run may have more or fewer of them. It is the
connection's first statement, the statement without its values, and how often it was met before.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pgonce.crashtest.boundary import Boundary
from pgonce.crashtest.wire import Kind

# Statements come again and again, and looking one up takes a tenth of the time; long ones hold values.
REMEMBERED_MAX, REMEMBERED_CHARACTERS_MAX = 1_000, 2_000

# Six digits tell sixteen million points apart; a program has hundreds.
ID_DIGITS = 6

_VALUE = re.compile(
    r"""[eE]?'(?:[^'\\]|''|\\.)*(?:'|$)   # a string, or its beginning
      | \$(\w*)\$.*?(?:\$\1\$|$)          # a dollar-quoted string
      | (?<![\w$"])[-+]?\d[\d.]*(?:[eE][-+]?\d+)?  # a number
    """,
    re.VERBOSE | re.DOTALL,
)
# What drivers put into the names of savepoints, cursors and tables that they make: a thread, a process, an object, a
# time. Another run has others.
_MADE_UP = re.compile(
    r"""(?<=[\w"])\d{5,}  # a decimal number in a name
      | (?<![0-9a-f])(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{12,}(?![0-9a-f])  # a hexadecimal one
    """,
    re.VERBOSE,
)
_DIGIT = re.compile(r"\d")
_LIST = re.compile(r"\?(?:\s*,\s*\?)+")
_ROWS = re.compile(r"\(\?\)(?:\s*,\s*\(\?\))+")
_BEGIN = re.compile(r"(?:begin|start transaction)\b", re.IGNORECASE)
_SAVEPOINT = re.compile(r"(?:savepoint|release|rollback to)\b", re.IGNORECASE)
_QUIET = re.compile(
    r"(?:begin|start|commit|end|rollback|abort|savepoint|release|set|show|discard|deallocate)\b", re.IGNORECASE
)


_READS = re.compile(r"(?:select|table|values|with|fetch|declare|close|explain|execute)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Point:
    """A place: on connections that begin with ``label``, the ``nth`` time that ``text`` comes."""

    label: str
    kind: Kind
    text: str
    nth: int

    @property
    def id(self) -> str:
        """Return a short name that is the same in every run."""
        told = "\0".join((self.label, self.kind.value, self.text, str(self.nth)))
        return hashlib.sha256(told.encode()).hexdigest()[:ID_DIGITS]


@dataclass(frozen=True, slots=True)
class Met:
    """A point as it was met in a clean run: the statement as sent, and its place in the transaction."""

    point: Point
    boundary: Boundary
    place: str
    group: tuple[str, ...]

    @property
    def words(self) -> str:
        """Return the statement, or what the message is where it has none."""
        text = self.boundary.statement
        return {
            Kind.STARTUP: "(connecting)",
            Kind.TERMINATE: "(disconnecting)",
            Kind.COPY_DONE: "(end of the COPY data)",
            Kind.COPY_FAIL: "(COPY given up)",
        }.get(self.boundary.kind, text.rstrip("; ") or "(an empty message)")

    @property
    def weight(self) -> int:
        """Say how much may depend on a fault here, 0 the most: what writes and COMMIT, what may write, the rest."""
        if self.boundary.kind in (Kind.STARTUP, Kind.TERMINATE):
            return 2
        if self.boundary.is_commit:
            return 0
        return 2 if _QUIET.match(self.point.text) else 1 if _READS.match(self.point.text) else 0


@dataclass(slots=True)
class _Connection:
    label: str = ""
    previous: str = ""
    transaction: int = 0
    statement: int = 0
    is_open: bool = False


@dataclass(slots=True)
class Tracker:
    """Recognise points while boundaries come by; made anew for every run."""

    _connections: dict[int, _Connection] = field(default_factory=dict)
    _counts: dict[tuple[str, Kind, str], int] = field(default_factory=dict)

    def meet(self, boundary: Boundary) -> Met:
        """Return the point that a boundary is."""
        connection = self._connections.setdefault(boundary.connection, _Connection())
        text = without_values(boundary.statement)
        if boundary.kind is Kind.STARTUP:
            label = "connecting"
        else:
            connection.label = connection.label or text or boundary.kind.value
            label = connection.label
        key = (label, boundary.kind, text)
        self._counts[key] = nth = self._counts.get(key, 0) + 1
        group = (label, boundary.kind.value, text, connection.previous)
        met = Met(Point(label, boundary.kind, text, nth), boundary, _place(connection, boundary), group)
        if not _QUIET.match(text):
            connection.previous = text
        elif boundary.is_commit:
            connection.previous = f"{connection.previous} / committed"
        return met


@dataclass(slots=True)
class Trail:
    """The boundaries of one run in their order. What points they are is found out when it is asked for.

    The program waits while a boundary is looked at, so nothing is done there that can be done later: only where one
    could be the ``sought`` point is it recognised at once, and with it all that came before.
    """

    sought: Point | None = None
    _tracker: Tracker = field(default_factory=Tracker)
    _new: list[Boundary] = field(default_factory=list)
    _met: list[Met] = field(default_factory=list)

    def reaches(self, boundary: Boundary) -> bool:
        """Note a boundary, and say whether it is the sought point."""
        self._new.append(boundary)
        sought = self.sought
        if sought is None or boundary.kind is not sought.kind or not _may_be(boundary.statement, sought.text):
            return False
        return self.met()[-1].point == sought

    def met(self) -> list[Met]:
        """Return the points of all boundaries so far."""
        self._met += map(self._tracker.meet, self._new)
        self._new.clear()
        return self._met


def _may_be(statement: str, text: str) -> bool:
    """Say whether a statement could be this text without its values: it has to begin with the same word.

    Values and made-up names hold a digit or a quote, so a word of letters with a blank behind it stays as it is.
    """
    word, blank, _ = text.partition(" ")
    return not (blank and word.isalpha()) or statement.startswith(word)


def without_values(statement: str) -> str:
    """Return a statement with its strings and numbers taken out, so that it is the same for other values."""
    return _remembered(statement) if len(statement) <= REMEMBERED_CHARACTERS_MAX else _without_values(statement)


def _without_values(statement: str) -> str:
    text = _VALUE.sub("?", statement)
    if _DIGIT.search(text):  # looked for first because it is rare, and the names take as long as all the rest
        text = _MADE_UP.sub("#", text)
    return " ".join(_ROWS.sub("(?)", _LIST.sub("?", text)).split())


_remembered = functools.lru_cache(REMEMBERED_MAX)(_without_values)


def sample(met: Sequence[Met], *, per_group: int | None, seed: int) -> list[Met]:
    """Choose points: of a statement that comes again and again in the same place the first, some, and the last.

    ``per_group`` None takes all. The order stays as they were met.
    """
    if per_group is None:
        return list(met)
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, one in enumerate(met):
        groups.setdefault(one.group, []).append(number)
    chosen: set[int] = set()
    chance = random.Random(seed)  # noqa: S311 (a choice that has to be repeatable)
    for numbers in groups.values():
        if len(numbers) <= per_group:
            chosen.update(numbers)
            continue
        ends = {numbers[0], numbers[-1]}
        between = [number for number in numbers if number not in ends]
        chosen |= ends | set(chance.sample(between, max(0, per_group - len(ends))))
    return [met[number] for number in sorted(chosen)]


def selected(met: Iterable[Met], ids: frozenset[str]) -> Iterator[Met]:
    """Yield the points whose ids are named, all if none is."""
    yield from (one for one in met if not ids or one.point.id in ids)


def _place(connection: _Connection, boundary: Boundary) -> str:
    """Say where in a transaction a boundary stands, and count on."""
    if boundary.kind in (Kind.STARTUP, Kind.TERMINATE):
        return "outside a transaction"
    is_inside = boundary.status in ("T", "E")
    if not is_inside:
        connection.transaction += 1
        connection.statement = 0
    connection.statement += 1
    many = f", {boundary.statements} statements in one message" if boundary.statements > 1 else ""
    if not is_inside and not _BEGIN.match(boundary.statement):
        return f"a transaction of its own (number {connection.transaction} of its connection){many}"
    if boundary.is_commit:
        return f"the COMMIT of transaction {connection.transaction}{many}"
    return f"statement {connection.statement} of transaction {connection.transaction}{many}"
