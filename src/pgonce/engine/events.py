"""Look at stored events: what each says, where it came from, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pgonce.db.transaction import Transaction
from pgonce.engine import job as jobs
from pgonce.errors import ConfigurationError, EventNotFound, RowRefused
from pgonce.model.canonical import clean_text, load_json, quoted
from pgonce.model.definition import Definition
from pgonce.model.identity import event_id

STATUSES = ("pending", "completed", "failed", "pruned")

# Events listed unless more are asked for: some screens of them, and no accident on a table of millions.
LISTED_EVENTS = 100

# Other sources named when an id is not found under the one given; a hint, not a listing.
HINTED_SOURCES = 5

Fields = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStep:
    """What became of an event once it was stored, and what stood there before. Amounts in cents.

    ``granted`` is how many attempts more it got, None if the step is no grant.
    """

    step: int
    action: str
    who: str
    why: str
    recorded_at: datetime
    old_status: str
    old_amount_cents: int
    old_payload: Fields | None
    old_error: str | None
    old_attempts: int
    run_id: int | None
    epoch: int | None
    granted: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document."""
        return {
            "step": self.step,
            "action": self.action,
            "who": self.who,
            "why": self.why,
            "recorded_at": self.recorded_at.isoformat(),
            "old_status": self.old_status,
            "old_amount_cents": self.old_amount_cents,
            "old_payload": self.old_payload,
            "old_error": self.old_error,
            "old_attempts": self.old_attempts,
            "run": self.run_id,
            "start": self.epoch,
            "granted": self.granted,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedIn:
    """A finding that names an event: a row that came with the same id and another payload."""

    run_id: int
    line: int
    kind: str
    amount_cents: int | None
    reason: str
    recorded_at: datetime

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document."""
        return {
            "run": self.run_id,
            "line": self.line,
            "kind": self.kind,
            "amount_cents": self.amount_cents,
            "reason": self.reason,
            "recorded_at": self.recorded_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvent:
    """An event in a line: its state and where it came from. The amount is in cents.

    ``granted`` are the attempts it may use beyond the job's budget.
    """

    source: str
    event_id: str
    status: str
    amount_cents: int
    attempts: int
    adopted: bool
    error: str | None
    run_id: int
    epoch: int
    line: int
    recorded_at: datetime
    granted: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document."""
        return {
            "source": self.source,
            "event_id": self.event_id,
            "status": self.status,
            "amount_cents": self.amount_cents,
            "attempts": self.attempts,
            "granted": self.granted,
            "adopted": self.adopted,
            "error": self.error,
            "run": self.run_id,
            "start": self.epoch,
            "line": self.line,
            "recorded_at": self.recorded_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event whole. ``payload`` is None when it was pruned; ``effect_cents`` None when there is no effect.

    ``input_name``, ``started_by`` and ``started_at`` are those of the start that stored it, None if that is missing.
    """

    job: str
    listed: ListedEvent
    payload: Fields | None
    fingerprint: str | None
    effect_cents: int | None
    kind: str | None
    definition_version: int | None
    input_name: str | None
    started_by: str | None
    started_at: datetime | None
    history: tuple[HistoryStep, ...]
    findings: tuple[NamedIn, ...]

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "version": 1,
            "job": self.job,
            **self.listed.as_dict(),
            "input": self.input_name,
            "kind": self.kind,
            "definition_version": self.definition_version,
            "started_by": self.started_by,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "payload": self.payload,
            "fingerprint": self.fingerprint,
            "effect_cents": self.effect_cents,
            "history": [step.as_dict() for step in self.history],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def fields_of(payload: str | None, definition: Definition | None) -> Fields | None:
    """Give a stored payload's values their columns' names; None for no payload, exact numbers as int and Decimal.

    A payload that does not fit the columns (which is another's doing) is returned under the name ``payload``.
    """
    if payload is None:
        return None
    value = load_json(payload, field="payload")
    if isinstance(value, dict):
        return value
    columns = definition.columns if definition else None
    if isinstance(value, list) and columns is not None and len(value) == len(columns):
        return dict(zip(columns, value, strict=True))
    return {"payload": value}


def stored_id(given: str, definition: Definition) -> str:
    """Write an id the way it is stored: of several key columns as a compact JSON array, whatever its blanks.

    Raises RowRefused for text that PostgreSQL cannot hold.
    """
    text = clean_text(given, "ID")
    if len(definition.key) == 1:
        return text
    try:
        values = load_json(text, field="ID")
        return event_id(values, definition.key) if isinstance(values, list) else text
    except (RowRefused, ValueError):
        return text


def definition_of(transaction: Transaction, job: str) -> Definition:
    """Read the definition in force. Raises ConfigurationError if there is no such job.

    Safe to re-run: it only reads.
    """
    stored = jobs.find(transaction, job)
    if stored is None:
        raise ConfigurationError(f"there is no job {job!r} in this database; pgonce job list names those there are")
    return stored.definition


def get_event(transaction: Transaction, job: str, given_id: str, *, source: str = "") -> Event:
    """Read one event with its effect, its history and the findings that name it.

    Raises EventNotFound saying how ids are written, ConfigurationError if there is no such job.
    Safe to re-run: it only reads.
    """
    in_force = definition_of(transaction, job)
    wanted = stored_id(given_id, in_force)
    key: dict[str, object] = {"job": job, "source": source, "event_id": wanted}
    found = transaction.row("show_event", **key)
    if found is None:
        raise not_found(transaction, job, given_id, source, in_force)
    (status, amount, payload, print_, attempts, adopted, error, recorded_at, run_id, epoch, line, granted) = found[:12]
    effect_cents, kind, version, input_name, owner, started_at, spec = found[12:]
    definition = Definition.from_spec(spec) if spec is not None else None
    listed = ListedEvent(
        source=source,
        event_id=wanted,
        status=status,
        amount_cents=amount,
        attempts=attempts,
        adopted=adopted,
        error=error,
        run_id=run_id,
        epoch=epoch,
        line=line,
        recorded_at=recorded_at,
        granted=granted,
    )
    return Event(
        job=job,
        listed=listed,
        payload=fields_of(payload, definition),
        fingerprint=print_.hex() if print_ else None,
        effect_cents=effect_cents,
        kind=kind,
        definition_version=version,
        input_name=input_name,
        started_by=owner,
        started_at=started_at,
        history=_history(transaction, key, definition),
        findings=_findings(transaction, key),
    )


def list_events(
    transaction: Transaction,
    job: str,
    *,
    status: str | None = None,
    run_id: int | None = None,
    limit: int = LISTED_EVENTS,
) -> list[ListedEvent]:
    """List events of a job in the order of their identity, at most ``limit``.

    Raises ConfigurationError for an unknown job or state. Safe to re-run: it only reads.
    """
    definition_of(transaction, job)
    if status is not None and status not in STATUSES:
        raise ConfigurationError(f"{status!r} is no state of an event; the states are {', '.join(STATUSES)}")
    if limit < 1:
        raise ConfigurationError(f"--limit {limit}: it has to be above zero")
    names = ListedEvent.__slots__  # the statement's columns stand in the order of these fields
    return [
        ListedEvent(**dict(zip(names, row, strict=True)))
        for row in transaction.rows("list_events", job=job, status=status, run_id=run_id, limit=limit)
    ]


def not_found(transaction: Transaction, job: str, given_id: str, source: str, definition: Definition) -> EventNotFound:
    """Make the exception for an id that is not stored, with what the id might have been meant to be."""
    where = f"source {quoted(source)}" if source else "the empty source"
    found = transaction.rows("sources_of_id", job=job, event_id=stored_id(given_id, definition), limit=HINTED_SOURCES)
    others = ", ".join(quoted(row[0]) if row[0] else "the empty one" for row in found)
    hint = f"It is stored under another source: {others} (--source TEXT). " if others else ""
    return EventNotFound(
        f"job {job!r} has no event {quoted(given_id)} under {where}. {hint}{_how_written(definition)} Upper and lower "
        "case, leading zeros and blanks count: 7, 007 and ' 7' are three ids. A rejected row has no event; see pgonce "
        f"quarantine list --job {job}.",
        job=job,
        event_id=given_id,
    )


def _how_written(definition: Definition) -> str:
    if len(definition.key) == 1:
        return f"An id is the text of column {quoted(definition.key[0])}, as the input writes it."
    example = ",".join(f'"{name}"' for name in definition.key)
    return (
        f"An id is a JSON array of the texts of {len(definition.key)} columns, in this order: '[{example}]', with the "
        "values in place of the names, numbers in quotes too."
    )


def _history(
    transaction: Transaction, key: Mapping[str, object], definition: Definition | None
) -> tuple[HistoryStep, ...]:
    return tuple(
        HistoryStep(
            step=step,
            action=action,
            who=who,
            why=why,
            recorded_at=recorded_at,
            old_status=old_status,
            old_amount_cents=old_amount,
            old_payload=fields_of(old_payload, definition),
            old_error=old_error,
            old_attempts=old_attempts,
            run_id=run_id,
            epoch=epoch,
            granted=granted,
        )
        for (
            step,
            action,
            old_status,
            old_amount,
            old_payload,
            old_error,
            old_attempts,
            who,
            why,
            run_id,
            epoch,
            recorded_at,
            granted,
        ) in transaction.rows("read_history", **key)
    )


def _findings(transaction: Transaction, key: Mapping[str, object]) -> tuple[NamedIn, ...]:
    return tuple(
        NamedIn(run_id=run_id, line=line, kind=kind, amount_cents=amount, reason=reason, recorded_at=recorded_at)
        for run_id, line, kind, amount, reason, recorded_at in transaction.rows("findings_of_event", **key)
    )
