"""What needs a person: rejected rows, conflicts and failed events, as one view in the order of the inputs."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgonce.db.transaction import Transaction
from pgonce.engine.events import Fields, definition_of, fields_of
from pgonce.errors import ConfigurationError
from pgonce.model.canonical import canonical_json, load_json
from pgonce.model.definition import Definition
from pgonce.model.money import format_cents
from pgonce.model.row import KEPT_RAW_BYTES_MAX
from pgonce.sources.cloudevents import event_of

KINDS = ("rejected", "conflict", "failed")

# Rows listed unless more are asked for; all of them are what an export is for.
LISTED_ROWS = 100

# Rows that one fetch brings while exporting: raw rows of the largest size are still only some tens of megabytes.
FETCHED_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A row or event that needs a person. The amount is in cents.

    ``raw`` are the row's bytes as they came (None for a failed event, of which ``payload`` is kept), cut off at
    KEPT_RAW_BYTES_MAX. ``reading`` and ``definition`` are those of its run.
    """

    run_id: int
    line: int
    kind: str
    source: str | None
    event_id: str | None
    amount_cents: int | None
    reason: str
    recorded_at: datetime
    raw: bytes | None
    payload: Fields | None
    reading: Mapping[str, Any]
    definition: Definition

    @property
    def cut_off(self) -> bool:
        """Say whether the row was too long to be kept whole."""
        return self.raw is not None and len(self.raw) >= KEPT_RAW_BYTES_MAX

    @property
    def raw_text(self) -> str | None:
        """The row as text, without its line end; bytes that are none in its encoding are written as escapes."""
        if self.raw is None:
            return None
        return self.raw.decode(str(self.reading.get("encoding") or "utf-8"), "backslashreplace").rstrip("\r\n")

    def as_dict(self, *, whole: bool = False) -> dict[str, object]:
        """Return plain values for a JSON document; ``whole`` adds the row itself."""
        values: dict[str, object] = {
            "run": self.run_id,
            "line": self.line,
            "kind": self.kind,
            "source": self.source,
            "event_id": self.event_id,
            "amount_cents": self.amount_cents,
            "reason": self.reason,
        }
        if whole:
            values |= {
                "recorded_at": self.recorded_at.isoformat(),
                "raw": self.raw_text,
                "raw_base64": base64.b64encode(self.raw).decode() if self.raw is not None else None,
                "cut_off": self.cut_off,
                "payload": self.payload,
            }
        return values


def list_quarantine(
    transaction: Transaction,
    job: str,
    *,
    run_id: int | None = None,
    kinds: Sequence[str] = (),
    limit: int = LISTED_ROWS,
) -> list[Quarantined]:
    """List what needs a person, at most ``limit`` rows, in the order of the inputs.

    Raises ConfigurationError for an unknown job or kind. Safe to re-run: it only reads.
    """
    definition_of(transaction, job)
    if limit < 1:
        raise ConfigurationError(f"--limit {limit}: it has to be above zero")
    asked = _asked(job, run_id, kinds) | {"limit": limit}
    return [_quarantined(row) for row in transaction.rows("list_quarantine", **asked)]


def count_quarantine(transaction: Transaction, job: str, *, run_id: int | None = None) -> dict[str, int]:
    """Count what needs a person, by kind. Safe to re-run: it only reads."""
    counts = dict.fromkeys(KINDS, 0)
    for kind, count in transaction.rows("count_quarantine", job=job, run_id=run_id):
        counts[kind] += int(count)
    return counts


def show_line(transaction: Transaction, job: str, line: int, *, run_id: int | None = None) -> list[Quarantined]:
    """Read what needs a person at a line of a job's inputs, or of one run's. Safe to re-run: it only reads."""
    definition_of(transaction, job)
    asked = _asked(job, run_id, ()) | {"line": line, "limit": LISTED_ROWS}
    return [_quarantined(row) for row in transaction.rows("list_quarantine", **asked)]


def each_row(
    transaction: Transaction, job: str, *, run_id: int | None = None, kinds: Sequence[str] = ()
) -> Iterator[Quarantined]:
    """Yield everything that needs a person, in constant memory. Safe to re-run: it only reads."""
    definition_of(transaction, job)
    for row in transaction.each("list_quarantine", batch=FETCHED_ROWS, **_asked(job, run_id, kinds)):
        yield _quarantined(row)


def reading_of(
    transaction: Transaction, job: str, *, run_id: int | None = None, kinds: Sequence[str] = ()
) -> Mapping[str, Any] | None:
    """Say how the inputs of the quarantined rows were read; None if there are none.

    Raises ConfigurationError if they were read in several ways. Safe to re-run: it only reads.
    """
    definition_of(transaction, job)
    found = transaction.rows("quarantined_readings", job=job, run_id=run_id, kinds=_kinds(kinds))
    if len(found) > 1:
        raise ConfigurationError(
            f"the quarantined rows of job {job!r} come from inputs that were read in different ways, and cannot stand "
            "in one file; name one run with --run N"
        )
    return found[0][0] if found else None


def report_line(row: Quarantined) -> bytes:
    """Write a row as a line of JSON: what is wrong, the row as it came, and its fields where it is an event."""
    text = json.dumps(row.as_dict(whole=True), ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


class RowForm:
    """Writes quarantined rows the way their input was written, so that they can be corrected and handed in again.

    ``reading`` is how the input was read, ``columns`` the names of its columns in order. They are None for what names
    its fields itself: NDJSON, CloudEvents (of a batch, an event a line) and Parquet, whose rows are written as NDJSON.
    """

    def __init__(self, reading: Mapping[str, Any], columns: Sequence[str] | None) -> None:
        self._reading = reading
        self._columns = columns
        self._encoding = str(reading["encoding"])

    def header(self) -> bytes:
        """Write the header; nothing where the input has none."""
        if self._columns is None or not self._reading["header"]:
            return b""
        return self._delimited(self._columns)

    def line(self, row: Quarantined) -> bytes:
        """Write one row: its own bytes, or a failed event put together from what is stored of it."""
        if row.raw is not None and self._columns is None:
            return b" ".join(row.raw.split(b"\n")).strip() + b"\n"
        if row.raw is not None:
            return row.raw if row.raw.endswith(b"\n") else row.raw + b"\n"
        values = _input_values(row)
        if self._columns is None:
            written = {name: value for name, value in values.items() if value is not None}
            whole = event_of(written) if self._reading["format"] == "cloudevents" else written
            return canonical_json(whole).encode() + b"\n"
        return self._delimited([_field(values.get(name), name) for name in self._columns])

    def _delimited(self, values: Sequence[str]) -> bytes:
        quotechar = self._reading["quotechar"]
        text = io.StringIO()
        writer = csv.writer(
            text,
            delimiter=str(self._reading["delimiter"]),
            quotechar=quotechar,
            quoting=csv.QUOTE_MINIMAL if quotechar else csv.QUOTE_NONE,
            lineterminator="\n",
        )
        try:
            writer.writerow(values)
            return text.getvalue().encode(self._encoding)
        except (csv.Error, UnicodeEncodeError) as error:
            raise ConfigurationError(
                f"a stored row cannot be written the way its input is: {error}. Export it with --format ndjson"
            ) from error


def _input_values(row: Quarantined) -> dict[str, object]:
    """Put together what the input said of an event: key, source, amount, payload. Ignored columns are not stored."""
    definition = row.definition
    values: dict[str, object] = dict(row.payload or {})
    key = definition.key
    parts = [row.event_id] if len(key) == 1 else load_json(row.event_id or "[]", field="id")
    assert isinstance(parts, list)
    values |= dict(zip(key, parts, strict=True))
    if definition.source_column:
        values[definition.source_column] = row.source
    if definition.amount and row.amount_cents is not None:
        scale = definition.amount_scale
        values[definition.amount] = format_cents(row.amount_cents, scale) if scale else row.amount_cents
    return values


def _field(value: object, name: str) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical_json(value, field=name)


def _asked(job: str, run_id: int | None, kinds: Sequence[str]) -> dict[str, object]:
    return {"job": job, "run_id": run_id, "line": None, "kinds": _kinds(kinds), "limit": None}


def _kinds(kinds: Sequence[str]) -> list[str] | None:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ConfigurationError(f"{unknown[0]!r} is nothing that is quarantined; the kinds are {', '.join(KINDS)}")
    return list(kinds) or None


def _quarantined(row: tuple[Any, ...]) -> Quarantined:
    run_id, line, kind, source, event_id, amount, reason, recorded_at, raw, payload, reading, spec = row
    definition = Definition.from_spec(spec)
    return Quarantined(
        run_id=run_id,
        line=line,
        kind=kind,
        source=source,
        event_id=event_id,
        amount_cents=amount,
        reason=reason or "no reason was stored",
        recorded_at=recorded_at,
        raw=bytes(raw) if raw is not None else None,
        payload=fields_of(payload, definition),
        reading=reading,
        definition=definition,
    )
