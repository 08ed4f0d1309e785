"""The report as text: the grid of points by faults, then each proven fault once, with its rows and its cure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pgonce.crashtest.cures import PLAIN, REFUSES, cure_of
from pgonce.crashtest.explore import Result
from pgonce.crashtest.limits import ROWS_SHOWN_MAX, VALUE_CHARACTERS_MAX
from pgonce.crashtest.report import Report
from pgonce.crashtest.verdict import Evidence, Row, TableDifference, Verdict

# Proven faults that are told in full; the others are in the grid, in --json and on the page.
DETAILS_MAX = 6
STATEMENT_WIDTH = 52


def lines(report: Report, *, verbose: bool = False) -> Iterator[str]:
    """Yield the report's lines; ``verbose`` tells every proven fault in full."""
    yield from grid(report)
    yield from again(report)
    shown = list(report.unsafe) if verbose else _different(report.unsafe)[:DETAILS_MAX]
    for result in shown:
        yield ""
        yield from detail(report, result)
    if len(report.unsafe) > len(shown):
        yield ""
        yield f"{len(report.unsafe) - len(shown)} more of the same kind: in the grid above, in --json and --report"
    yield ""
    yield from context(report)
    yield report.sentence


def grid(report: Report) -> Iterator[str]:
    """Yield the points and the worst verdict of each fault there."""
    faults = [fault for fault in report.faults if report.worst_of(fault) is not None]
    yield (
        f"{'point':6}  {'statement':{STATEMENT_WIDTH}}  " + "  ".join(f"{fault.value:13}" for fault in faults).rstrip()
    )
    for point_id in report.points:
        verdicts = report.verdicts(point_id)
        met = report.met(point_id)
        words = met.words + (f" (no. {met.point.nth})" if met.point.nth > 1 else "")
        words = words if len(words) <= STATEMENT_WIDTH else _middle_cut(met.words, met.point.nth)
        cells = "  ".join(f"{verdicts[fault].value if fault in verdicts else '-':13}" for fault in faults)
        yield f"{point_id:6}  {words:{STATEMENT_WIDTH}}  {cells}".rstrip()


def again(report: Report) -> Iterator[str]:
    """Yield what a second run without a fault does, where it does something."""
    verdict, why = report.baseline.again
    if verdict.is_unsafe:
        yield ""
        yield f"{verdict.value} by a second run without any fault: {why}"
        yield from _evidence(report.baseline.again_evidence)
        if report.baseline.again_output and verdict is Verdict.STUCK:
            yield f"  it said last: {report.baseline.again_output.splitlines()[-1][:VALUE_CHARACTERS_MAX]}"
        yield f"  cure: {REFUSES if verdict is Verdict.STUCK else PLAIN}"


def detail(report: Report, result: Result) -> Iterator[str]:
    """Yield one result in full."""
    met = result.trial.met
    nth = f", occurrence {met.point.nth}" if met.point.nth > 1 else ""
    yield f"{result.verdict.value} at {met.point.id}, {result.trial.blow.name}: {result.why}"
    yield f"  statement: {met.words}{nth}"
    yield f"  place: {met.place}"
    yield f"  fault: {result.trial.blow.words}"
    yield f"  runs: {', then '.join(result.exits)}"
    for note in result.notes:
        yield f"  note: {note}"
    yield from _evidence(result.evidence)
    if result.output and not result.evidence.ended_well:
        yield f"  it said last: {result.output.splitlines()[-1][:VALUE_CHARACTERS_MAX]}"
    yield f"  cure: {cure_of(result)}"
    yield f"  again: {report.replay(result)}"


def context(report: Report) -> Iterator[str]:
    """Yield what one has to know to believe the sentence below it."""
    baseline = report.baseline
    yield f"compared: {', '.join(sorted(baseline.compared)) or 'no table'}; changed by a clean run: " + (
        ", ".join(baseline.effect) or "nothing"
    )
    if baseline.left_out:
        yield f"left out, since two clean runs differ there: {', '.join(baseline.left_out)}"
    if baseline.references:
        yield f"compared by the row whose key they hold, without a foreign key: {', '.join(baseline.references)}"
    if report.not_isolated_because:
        yield f"the program could reach other hosts ({report.not_isolated_because}); what it did there is not seen"
    yield from baseline.notes
    if report.too_early:
        yield (
            f"in {report.too_early} trials the program ended well before its work was done (a swallowed error?), and "
            "only one more run did it: see to it that it is run again, or let it fail"
        )
    many = sum(met.boundary.statements > 1 for met in baseline.met)
    if many:
        yield f"{many} messages hold several statements each; a fault between those cannot be tried from outside"
    left = f", {report.left_out} left out by sampling or limits (--exhaustive tries all)" if report.left_out else ""
    yield f"{len(report.results)} trials in {report.took_s:.1f} s on PostgreSQL {report.server}{left}"


def row_marks(row: Row) -> str:
    """Say how often a row is there and how often it should be."""
    before = f", {_times(row.before)} before" if row.before else ""
    return f"{_times(row.now)}, {_times(row.clean)} after a clean run{before}"


def row_words(text: str) -> str:
    """Tell a row as names and values, cut where it is long."""
    try:
        told = ", ".join(f"{name}={_value(value)}" for name, value in json.loads(text).items())
    except (ValueError, AttributeError):
        told = text
    return told if len(told) <= VALUE_CHARACTERS_MAX else told[: VALUE_CHARACTERS_MAX - 3] + "..."


def _evidence(evidence: Evidence) -> Iterator[str]:
    for one in evidence.tables:
        yield f"  table {one.table}: {one.why}"
        yield from _rows(one)
    for what, names in (
        ("schema", evidence.schema),
        ("file", evidence.files),
        ("invariant", evidence.invariants),
        ("left behind", evidence.leftovers),
    ):
        for name in names[:ROWS_SHOWN_MAX]:
            yield f"  {what}: {name}"


def _rows(one: TableDifference) -> Iterator[str]:
    for row in one.rows[:ROWS_SHOWN_MAX]:
        sign = "+" if row.now > row.clean else "-"
        yield f"    {sign} {row_words(row.text)}   ({row_marks(row)})"
    if len(one.rows) > ROWS_SHOWN_MAX:
        yield f"    ... and at least {len(one.rows) - ROWS_SHOWN_MAX} more rows"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _middle_cut(words: str, nth: int) -> str:
    tail = f"... (no. {nth})" if nth > 1 else "..."
    return words[: STATEMENT_WIDTH - len(tail)] + tail


def _different(results: tuple[Result, ...]) -> list[Result]:
    """Keep one result of each kind: verdict, fault, statement and reason."""
    seen: dict[tuple[str, ...], Result] = {}
    for result in results:
        seen.setdefault((result.verdict.value, result.trial.met.point.text, str(result.trial.blow.is_after)), result)
    return list(seen.values())
