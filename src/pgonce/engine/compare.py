"""Is a row the same event again, or the same id with another payload?

The server compares texts; that settles nearly every replay. What is left is compared here field by field: events that
were stored under an earlier definition of the job, events that an operator amended, pruned events, and conflicts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pgonce.db.transaction import Transaction
from pgonce.model.definition import Definition
from pgonce.model.identity import Difference, describe, differences, fingerprint
from pgonce.model.row import Key, Row

Columns = tuple[str, ...] | None

_TIME_FORMAT = "%Y-%m-%d %H:%M:%S%z"
_TIME_OF_ORIGIN = re.compile(r"(?<= line )([0-9]+ \(run [0-9]+), [0-9]{4}-[0-9 :-]+[+-][0-9]{4}\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is stored of an event. ``same`` says whether amount and payload text are those of the row beside it."""

    status: str
    run_id: int
    line: int
    same: bool = False
    amount_cents: int = 0
    payload: str | None = None
    attempts: int = 0
    granted: int = 0

    def attempts_left(self, budget: int) -> int:
        """Say how often a pending event may still be tried, with the budget of its job; never below zero."""
        return max(0, budget + self.granted - self.attempts)

    def against(self, row: Row) -> Stored:
        """Compare with a row's amount and payload text."""
        return replace(self, same=self.amount_cents == row.amount_cents and self.payload == row.payload)


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The row of an input that named an event first, while nothing of it is stored."""

    line: int
    amount_cents: int
    payload: str


@dataclass(frozen=True, slots=True)
class _Detail:
    amount_cents: int
    payload: str | None
    fingerprint: bytes | None
    origin: str


@dataclass(slots=True)
class Comparison:
    """Compares rows read by one definition with stored events, whatever definition those were read by."""

    definition: Definition
    redact: frozenset[str] = frozenset()
    _columns_of_run: dict[int, Columns] = field(default_factory=dict)

    def compare(
        self, transaction: Transaction, job: str, pairs: Sequence[tuple[Row, Stored]]
    ) -> Iterator[tuple[Row, Stored, str | None]]:
        """Yield each row with its event and, if they do not agree, the reason in words."""
        self._learn_columns(transaction, {event.run_id for _, event in pairs})
        doubtful = [row for row, event in pairs if not self._plainly_same(event)]
        details = self._read_details(transaction, job, doubtful)
        superseded = self._read_superseded(transaction, job, doubtful)
        for row, event in pairs:
            if self._plainly_same(event):
                yield row, event, None
            else:
                yield row, event, self._disagreement(row, event, details[row.key], superseded.get(row.key, []))

    def as_stored(self, transaction: Transaction, row: Row, event: Stored) -> Row:
        """Return the row with the amount and payload that are stored: an amended event is applied as amended."""
        if event.same or event.payload is None:
            return row
        self._learn_columns(transaction, {event.run_id})
        columns = self._columns_of_run[event.run_id]
        values = json.loads(event.payload, parse_float=str, parse_int=str)
        fields = dict(row.fields) | (dict(zip(columns, values, strict=True)) if columns is not None else values)
        amount_column = self.definition.amount
        if amount_column:
            fields[amount_column] = str(event.amount_cents)
        return replace(row, amount_cents=event.amount_cents, payload=event.payload, fields=fields)

    def read_alike(self, transaction: Transaction, run_id: int) -> bool:
        """Say whether a run's payloads have the columns that these rows have: then equal texts are equal payloads."""
        self._learn_columns(transaction, {run_id})
        return self._columns_of_run[run_id] == self.definition.columns

    def _plainly_same(self, event: Stored) -> bool:
        return event.same and self._columns_of_run.get(event.run_id) == self.definition.columns

    def _learn_columns(self, transaction: Transaction, run_ids: set[int]) -> None:
        unknown = sorted(run_ids - self._columns_of_run.keys())
        if unknown:
            for run_id, spec in transaction.rows("read_definitions_of_runs", run_ids=unknown):
                self._columns_of_run[run_id] = Definition.from_spec(spec).columns

    @staticmethod
    def _read_details(transaction: Transaction, job: str, rows: Sequence[Row]) -> dict[Key, _Detail]:
        if not rows:
            return {}
        found = transaction.rows("read_events", job=job, **_keys(rows))
        return {
            (source, event_id): _Detail(
                amount_cents=amount,
                payload=payload,
                fingerprint=print_,
                origin=f"{input_name or 'an input'} line {line} (run {run_id}, {recorded_at:{_TIME_FORMAT}})",
            )
            for source, event_id, _status, amount, payload, print_, run_id, line, recorded_at, input_name, _v in found
        }

    @staticmethod
    def _read_superseded(transaction: Transaction, job: str, rows: Sequence[Row]) -> dict[Key, list[tuple[int, str]]]:
        if not rows:
            return {}
        superseded: dict[Key, list[tuple[int, str]]] = {}
        for source, event_id, amount, payload in transaction.rows("read_superseded", job=job, **_keys(rows)):
            superseded.setdefault((source, event_id), []).append((amount, payload))
        return superseded

    def _disagreement(
        self, row: Row, event: Stored, detail: _Detail, superseded: Sequence[tuple[int, str]]
    ) -> str | None:
        if detail.payload is None:
            return self._pruned_disagreement(row, detail)
        found = self._differences(row, self._columns_of_run[event.run_id], detail.amount_cents, detail.payload)
        if not found or any(
            not self._differences(row, self._columns_of_run[event.run_id], amount, payload)
            for amount, payload in superseded
        ):
            return None
        return self._reason(row, detail.origin, found)

    def within(self, row: Row, first: FirstRow, input_name: str) -> str | None:
        """Compare a row with one of the same input that named the event first; return the reason if they disagree."""
        if first.amount_cents == row.amount_cents and first.payload == row.payload:
            return None
        found = self._differences(row, self.definition.columns, first.amount_cents, first.payload)
        return self._reason(row, f"{input_name} line {first.line}", found) if found else None

    def _reason(self, row: Row, origin: str, found: Sequence[Difference]) -> str:
        return (
            f"event {row.event_id!r} came first with another payload, from {origin}: {describe(found, self.redact)}. "
            "The stored event stays as it is; if this row is right, give it an id of its own"
        )

    def _differences(self, row: Row, columns: Columns, amount_cents: int, payload: str) -> tuple[Difference, ...]:
        return differences(
            stored_payload=payload,
            stored_columns=columns,
            stored_amount=amount_cents,
            new_payload=row.payload,
            new_columns=self.definition.columns,
            new_amount=row.amount_cents,
            amount_name=self.definition.amount or "amount",
        )

    @staticmethod
    def _pruned_disagreement(row: Row, detail: _Detail) -> str | None:
        given = fingerprint(row.payload, row.amount_cents)
        if detail.fingerprint == given:
            return None
        kept = detail.fingerprint.hex() if detail.fingerprint else "none"
        return (
            f"event {row.event_id!r} came first with another payload, from {detail.origin}. That payload was pruned, "
            f"so the fields cannot be named: stored fingerprint {kept}, now {given.hex()}"
        )


def _keys(rows: Sequence[Row]) -> dict[str, list[str]]:
    keys = sorted({row.key for row in rows})
    return {"sources": [key[0] for key in keys], "event_ids": [key[1] for key in keys]}


def without_time(reason: str) -> str:
    """Take out of a reason when the first row was stored: the same rows then give the same text, whenever they ran."""
    return _TIME_OF_ORIGIN.sub(r"\1)", reason)
