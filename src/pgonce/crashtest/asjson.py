"""Results as JSON with stable keys, and back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pgonce.crashtest.cures import cure_of
from pgonce.crashtest.explore import Result
from pgonce.crashtest.report import Report
from pgonce.crashtest.verdict import Counted, Evidence, Row, TableDifference, Verdict


def report_as_dict(report: Report) -> dict[str, Any]:
    """Return the whole report; the keys are stable."""
    baseline = report.baseline
    return {
        "version": 1,
        "command": list(report.argv),
        "sentence": report.sentence,
        "safe": report.is_safe,
        "proven_unsafe": report.is_proven_unsafe,
        "seed": report.seed,
        "server": report.server,
        "took_s": round(report.took_s, 3),
        "points_met": report.points_met,
        "trials_left_out": report.left_out,
        "points_not_tried": report.points_untried,
        "stopped": bool(report.stopped_by),
        "compared": sorted(baseline.compared),
        "effect": list(baseline.effect),
        "left_out": list(baseline.left_out),
        "references": list(baseline.references),
        "isolated": not report.not_isolated_because,
        "dropped_variables": list(report.dropped),
        "notes": list(baseline.notes),
        "again": {
            "verdict": baseline.again[0].value,
            "why": baseline.again[1],
            **evidence_as_dict(baseline.again_evidence),
        },
        "faults": {
            fault.value: verdict.value for fault in report.faults if (verdict := report.worst_of(fault)) is not None
        },
        "results": [{**result_as_dict(result), "cure": cure_of(result)} for result in report.results],
    }


def result_as_dict(result: Result) -> dict[str, Any]:
    """Return everything that a trial showed."""
    met, boundary = result.trial.met, result.trial.met.boundary
    return {
        "point": met.point.id,
        "fault": result.trial.blow.fault.value,
        "blow": result.trial.blow.name,
        "verdict": result.verdict.value,
        "why": result.why,
        "statement": met.words,
        "occurrence": met.point.nth,
        "place": met.place,
        "connection": met.point.label,
        "message": boundary.kind.value,
        "exits": list(result.exits),
        "notes": list(result.notes),
        "output": result.output,
        "took_s": round(result.took_s, 4),
        "own_s": round(result.own_s, 4),
        **evidence_as_dict(result.evidence),
    }


def evidence_as_dict(evidence: Evidence) -> dict[str, Any]:
    """Return what differed from a clean run."""
    return {
        "tables": [_table(one) for one in evidence.tables],
        "schema": list(evidence.schema),
        "files": list(evidence.files),
        "invariants": list(evidence.invariants),
        "leftovers": list(evidence.leftovers),
    }


def evidence_from(entry: dict[str, Any]) -> Evidence:
    """Read back what `evidence_as_dict` gave."""
    return Evidence(
        tables=tuple(
            TableDifference(
                one["table"],
                _counted_from(one["before"]),
                _counted_from(one["clean"]),
                _counted_from(one["now"]),
                tuple(Row(row["row"], row["before"], row["clean"], row["now"]) for row in one["rows"]),
                Verdict(one["verdict"]),
                one["why"],
            )
            for one in entry["tables"]
        ),
        schema=tuple(entry["schema"]),
        files=tuple(entry["files"]),
        invariants=tuple(entry["invariants"]),
        leftovers=tuple(entry["leftovers"]),
    )


def _table(one: TableDifference) -> dict[str, Any]:
    return {
        "table": one.table,
        "verdict": one.verdict.value,
        "why": one.why,
        "before": _counted(one.before),
        "clean": _counted(one.clean),
        "now": _counted(one.now),
        "rows": [{"row": row.text, "before": row.before, "clean": row.clean, "now": row.now} for row in one.rows],
    }


def _counted(found: Counted | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"rows": found.rows, "sums": {name: str(value) for name, value in found.sums.items()}}


def _counted_from(found: dict[str, Any] | None) -> Counted | None:
    if found is None:
        return None
    return Counted(found["rows"], {name: Decimal(value) for name, value in found["sums"].items()})
