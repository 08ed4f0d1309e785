"""What a difference means. Pure: counts, sums and rows in, a verdict out.

Three states of a table are looked at: before the program ran, after a clean run, and now. What the clean run changes
has a direction, up or down; a table that moved further in that direction was changed twice, one that did not get
there was changed too little.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal


class Verdict(enum.Enum):
    """What became of the program at a point; the worst comes first."""

    DOUBLED = "DOUBLED"
    LOST = "LOST"
    CHANGED = "CHANGED"
    STUCK = "STUCK"
    UNREACHED = "UNREACHED"
    SAFE = "SAFE"

    @property
    def is_unsafe(self) -> bool:
        """Say whether it is a proven fault of the program."""
        return self in (Verdict.DOUBLED, Verdict.LOST, Verdict.CHANGED, Verdict.STUCK)


_ORDER = {verdict: number for number, verdict in enumerate(Verdict)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts. Raises ValueError for none."""
    return min(verdicts, key=_ORDER.__getitem__)


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows of a table and the sums of its columns at one moment."""

    rows: int
    sums: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Row:
    """A row's text and how often it is there: before the program ran, after a clean run, and now."""

    text: str
    before: int
    clean: int
    now: int


@dataclass(frozen=True, slots=True)
class TableDifference:
    """A table that is not as a clean run leaves it; a state is None where the table does not exist."""

    table: str
    before: Counted | None
    clean: Counted | None
    now: Counted | None
    rows: tuple[Row, ...] = ()
    verdict: Verdict = Verdict.CHANGED
    why: str = ""


def judge_table(
    table: str, before: Counted | None, clean: Counted | None, now: Counted | None, rows: Sequence[Row]
) -> TableDifference:
    """Say what a table's difference means: its rows first, then its sums, then single rows."""
    verdict, why = _judged(before, clean, now, rows)
    return TableDifference(table, before, clean, now, tuple(rows), verdict, why)


def _judged(
    before: Counted | None, clean: Counted | None, now: Counted | None, rows: Sequence[Row]
) -> tuple[Verdict, str]:
    if clean is None:
        return Verdict.CHANGED, "a clean run leaves no such table"
    if now is None:
        return Verdict.LOST, "the table is not there"
    start = before or Counted(0, {})
    if now.rows != clean.rows:
        return _by_direction(
            now.rows - clean.rows, clean.rows - start.rows, f"{now.rows} rows, {clean.rows} after a clean run"
        )
    for column in sorted(clean.sums.keys() & now.sums.keys()):
        moved = clean.sums[column] - start.sums.get(column, Decimal(0))
        off = now.sums[column] - clean.sums[column]
        if off != 0 and moved != 0:
            told = f"sum of {column} is {now.sums[column]}, {clean.sums[column]} after a clean run"
            return _by_direction(off, moved, told)
    surplus = [row for row in rows if row.now > row.clean]
    if surplus and all(row.before > row.clean for row in surplus):
        return Verdict.LOST, "rows are still as they were before the program ran"
    if surplus and all(row.clean > 0 for row in surplus):
        return Verdict.DOUBLED, "rows are there more often than after a clean run, and others are missing"
    return Verdict.CHANGED, "as many rows as after a clean run, but not the same ones"


def _by_direction(off: int | Decimal, moved: int | Decimal, told: str) -> tuple[Verdict, str]:
    """A clean run that leaves as much as before has no direction: then nothing can have been done twice."""
    if moved == 0:
        return Verdict.CHANGED, told
    further = (off > 0) == (moved > 0)
    return (Verdict.DOUBLED if further else Verdict.LOST), told


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen after the last run: differences, and whether the program said that all is well."""

    tables: tuple[TableDifference, ...] = ()
    schema: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    invariants: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    ended_well: bool = True
    timed_out: bool = False

    @property
    def is_clean(self) -> bool:
        """Say whether nothing differs from a clean run."""
        return not (self.tables or self.schema or self.files or self.invariants or self.leftovers)


def judge(evidence: Evidence) -> tuple[Verdict, str]:
    """Return the verdict and the reason for it.

    Something doubled is doubled, whatever the program says. If it still fails at the end, a person is called before
    anything is lost for good: that is STUCK. Something missing after the program said that all is well is LOST.
    """
    of_tables = [one.verdict for one in evidence.tables]
    if Verdict.DOUBLED in of_tables:
        return Verdict.DOUBLED, _first(evidence.tables, Verdict.DOUBLED)
    if not evidence.ended_well:
        state = "with the right state" if evidence.is_clean else "and the state is not that of a clean run"
        how = "does not end within the time limit" if evidence.timed_out else "fails again and again"
        return Verdict.STUCK, f"run again, the program {how}, {state}"
    if Verdict.LOST in of_tables:
        return Verdict.LOST, _first(evidence.tables, Verdict.LOST)
    if of_tables:
        return Verdict.CHANGED, _first(evidence.tables, Verdict.CHANGED)
    if evidence.invariants:
        return Verdict.CHANGED, f"an invariant does not hold: {evidence.invariants[0]}"
    if evidence.schema:
        return Verdict.CHANGED, f"the schema differs: {evidence.schema[0]}"
    if evidence.files:
        return Verdict.CHANGED, f"a file differs: {evidence.files[0]}"
    if evidence.leftovers:
        return Verdict.CHANGED, f"left behind: {evidence.leftovers[0]}"
    return Verdict.SAFE, "the state is that of a clean run"


def _first(tables: Sequence[TableDifference], verdict: Verdict) -> str:
    found = next(one for one in tables if one.verdict is verdict)
    return f"{found.table}: {found.why}"
