"""``pgonce.quarantine``: see what needs a person, and take it out as a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from pgonce.api.database import opened
from pgonce.db.transaction import Transaction
from pgonce.engine import quarantine
from pgonce.engine.quarantine import LISTED_ROWS, Quarantined, RowForm, report_line
from pgonce.errors import ConfigurationError
from pgonce.sources import ReadingOptions, open_input
from pgonce.sources.options import SELF_NAMING

EXPORT_FORMS = ("ndjson", "rows")

# Reading any number of rows through one cursor takes as long as the file takes to be written.
EXPORT_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """How many rows were written, by kind, and how many were left out because they were kept cut off."""

    rows: Mapping[str, int]
    cut_off: int

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {"version": 1, "rows": dict(self.rows), "cut_off": self.cut_off}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What needs a person: the rows listed, and how many there are of each kind."""

    rows: tuple[Quarantined, ...]
    counts: Mapping[str, int]


def list_(
    *, job: str, run_id: int | None = None, kinds: Sequence[str] = (), limit: int = LISTED_ROWS, **where: Any
) -> Listing:
    """List rejected rows, conflicts and failed events in the order of the inputs. Safe to re-run: it only reads."""

    def body(transaction: Transaction) -> Listing:
        rows = quarantine.list_quarantine(transaction, job, run_id=run_id, kinds=kinds, limit=limit)
        counts = quarantine.count_quarantine(transaction, job, run_id=run_id)
        asked = {kind: count for kind, count in counts.items() if not kinds or kind in kinds}
        return Listing(rows=tuple(rows), counts=asked)

    with opened(**_named(where)) as clerk:
        return clerk.do(body, commit=False, snapshot=True)


def show(line: int, *, job: str, run_id: int | None = None, **where: Any) -> list[Quarantined]:
    """Read what needs a person at one line, with the row itself. Safe to re-run: it only reads."""
    with opened(**_named(where)) as clerk:
        return clerk.do(lambda tx: quarantine.show_line(tx, job, line, run_id=run_id), commit=False)


def export(
    output: str | Path,
    *,
    job: str,
    run_id: int | None = None,
    kinds: Sequence[str] = (),
    form: str = "ndjson",
    like: str | Path | None = None,
    **where: Any,
) -> Exported:
    """Write what needs a person to a file, in constant memory; the file appears whole or not at all.

    ``form`` ``ndjson`` says of each row what is wrong and what it was; ``rows`` are the rows as their input has them,
    to be corrected and handed in. ``like`` is a file with the input's header, which pgonce does not keep.
    Raises ConfigurationError when rows cannot stand in one file.
    Safe to re-run: yes; the file is written anew.
    """
    if form not in EXPORT_FORMS:
        raise ConfigurationError(f"--format {form}: it is one of {', '.join(EXPORT_FORMS)}")
    asked: dict[str, Any] = {"run_id": run_id, "kinds": kinds}
    with opened(**_named(where)) as clerk:
        patient = replace(clerk, patience_s=EXPORT_S)

        def body(transaction: Transaction) -> Exported:
            row_form = _row_form(transaction, job, asked, like) if form == "rows" else None
            rows = quarantine.each_row(transaction, job, **asked)
            return _write_whole(Path(output), lambda file: _write_rows(file, rows, row_form))

        return patient.do(body, commit=False, snapshot=True)


def _row_form(transaction: Transaction, job: str, asked: Mapping[str, Any], like: str | Path | None) -> RowForm | None:
    reading = quarantine.reading_of(transaction, job, **asked)
    if reading is None:
        return None
    if reading["format"] in SELF_NAMING:
        return RowForm(reading, None)
    if not reading["header"]:
        return RowForm(reading, reading["columns"])
    if like is None:
        raise ConfigurationError(
            "rows need the header of their input, which is not kept: name the input, or any file with the same header, "
            "with --like FILE; or export with --format ndjson"
        )
    options = ReadingOptions(**{**reading, "columns": None})
    with open_input(like, options) as source:
        return RowForm(reading, source.columns)


def _write_rows(file: BinaryIO, rows: Any, form: RowForm | None) -> Exported:
    written, cut_off = dict.fromkeys(quarantine.KINDS, 0), 0
    if form is not None:
        file.write(form.header())
    for row in rows:
        if form is not None and row.cut_off:
            cut_off += 1
            continue
        file.write(report_line(row) if form is None else form.line(row))
        written[row.kind] += 1
    return Exported(rows=written, cut_off=cut_off)


def _write_whole(path: Path, write: Callable[[BinaryIO], Exported]) -> Exported:
    """Write a file under a temporary name beside it and rename it at the end; nothing is left when that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            done = write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return done


def _named(where: Mapping[str, Any]) -> dict[str, Any]:
    return {"application": "pgonce/quarantine", **where}
