"""The report as one page: a grid of points by faults, and behind each cell what was seen there.

One file without script and without anything from elsewhere: a cell is a link to a section that opens by itself where
the browser can, and by a click elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from pgonce.crashtest.astext import context, row_marks, row_words
from pgonce.crashtest.cures import PLAIN, REFUSES, cure_of
from pgonce.crashtest.explore import Result
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.report import Report
from pgonce.crashtest.verdict import Evidence, TableDifference, Verdict, worst


def document(report: Report) -> str:
    """Return the page, HTML in UTF-8."""
    style = files("pgonce.crashtest").joinpath("page.css").read_text("utf-8")
    kind = worst([one.verdict for one in report.results] + [report.baseline.again[0]]).value
    facts = "".join(f"<li>{_text(line)}</li>" for line in context(report))
    told = "".join(_section(report, result) for result in report.results if result.verdict is not Verdict.SAFE)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{_text(report.sentence)} - pgonce crashtest</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>Is <code>{_text(report.command)}</code> safe to run again?</h1>
<p class="sentence {kind}">{_text(report.sentence)}</p>
<p>At each point the program was failed in each way, and run again without a fault. Then the database was compared with
what a clean run leaves.</p>
</header>
<main>
<h2 id="grid">Points and faults</h2>
{_grid(report)}
{_again(report)}
<h2>What was seen</h2>
{told or "<p>Every trial ended with the state of a clean run.</p>"}
<h2>How it was tested</h2>
<ul>{facts}</ul>
<dl>{_faults(report)}</dl>
</main>
</body>
</html>
"""


def _grid(report: Report) -> str:
    faults = [fault for fault in report.faults if report.worst_of(fault) is not None]
    head = "".join(f'<th scope="col">{fault.value}</th>' for fault in faults)
    rows = "".join(_grid_row(report, point_id, faults) for point_id in report.points)
    return (
        '<div class="scroll" tabindex="0" role="group" aria-labelledby="grid"><table><thead><tr>'
        f'<th scope="col">statement</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _grid_row(report: Report, point_id: str, faults: list[Fault]) -> str:
    met, verdicts = report.met(point_id), report.verdicts(point_id)
    nth = f" <span class='note'>no. {met.point.nth}</span>" if met.point.nth > 1 else ""
    cells = "".join(f'<td class="cell">{_cell(report, point_id, fault, verdicts)}</td>' for fault in faults)
    return (
        f'<tr><th scope="row"><code>{_text(met.words)}</code>{nth}'
        f'<div class="place">{point_id}: {_text(met.place)}</div></th>{cells}</tr>'
    )


def _cell(report: Report, point_id: str, fault: Fault, verdicts: dict[Fault, Verdict]) -> str:
    verdict = verdicts.get(fault)
    if verdict is None:
        return '<span class="mark">-</span>'
    if verdict is Verdict.SAFE:
        return '<span class="mark SAFE">SAFE</span>'
    found = (result for result in report.points[point_id] if result.trial.blow.fault is fault)
    result = next(result for result in found if result.verdict is verdict)
    return f'<a class="mark {verdict.value}" href="#{_anchor(result)}">{verdict.value}</a>'


def _section(report: Report, result: Result) -> str:
    met = result.trial.met
    nth = f", occurrence {met.point.nth}" if met.point.nth > 1 else ""
    facts = [
        ("statement", f"<code>{_text(met.words)}</code>{nth}"),
        ("place", _text(met.place)),
        ("fault", _text(result.trial.blow.words)),
        ("runs", _text(", then ".join(result.exits))),
        *(("note", _text(note)) for note in result.notes),
        ("cure", _text(cure_of(result))),
        ("again", f"<code>{_text(report.replay(result))}</code>"),
    ]
    said = f"<p class='note'>It said last:</p><pre>{_text(result.output)}</pre>" if result.output else ""
    return (
        f'<details><summary><span class="mark {result.verdict.value}">{result.verdict.value}'
        f"</span> {_text(result.trial.blow.name)} at <code>{_text(met.words)}</code>{nth}: {_text(result.why)}"
        "</summary>"
        f"<div id='{_anchor(result)}'><dl>{''.join(f'<dt>{name}</dt><dd>{text}</dd>' for name, text in facts)}</dl>"
        f'{"".join(_evidence(result.evidence))}{said}<p><a href="#grid">back to the grid</a></p></div></details>'
    )


def _again(report: Report) -> str:
    verdict, why = report.baseline.again
    if not verdict.is_unsafe:
        return ""
    cure = REFUSES if verdict is Verdict.STUCK else PLAIN
    return (
        f'<h2>Run twice, without any fault</h2><p><span class="mark {verdict.value}">{verdict.value}</span> '
        f"{_text(why)}</p>{''.join(_evidence(report.baseline.again_evidence))}<p>{_text(cure)}</p>"
    )


def _evidence(evidence: Evidence) -> Iterator[str]:
    for one in evidence.tables:
        yield f"<p>table <code>{_text(one.table)}</code>: {_text(one.why)}</p>{''.join(_rows(one))}"
    for what, names in (
        ("schema", evidence.schema),
        ("file", evidence.files),
        ("invariant", evidence.invariants),
        ("left behind", evidence.leftovers),
    ):
        for name in names:
            yield f"<p>{what}: <code>{_text(name)}</code></p>"


def _rows(one: TableDifference) -> Iterator[str]:
    for row in one.rows:
        kind, sign = ("more", "+") if row.now > row.clean else ("less", "-")
        yield (
            f'<div class="row {kind}">{sign} {_text(row_words(row.text))} '
            f"<span class='note'>{_text(row_marks(row))}</span></div>"
        )


def _faults(report: Report) -> str:
    return "".join(f"<dt><code>{fault.value}</code></dt><dd>{_text(fault.words)}</dd>" for fault in report.faults)


def _anchor(result: Result) -> str:
    side = "after" if result.trial.blow.is_after else "before"
    return f"p{result.trial.met.point.id}-{result.trial.blow.fault.value}-{side}"


def _text(text: str) -> str:
    printable = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    return escape(printable)
