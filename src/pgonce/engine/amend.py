"""Reopen and amend events that failed or are pending: by whom, when and why is kept, and what stood there before.

An operator's change is one transaction. The event's row is locked first and looked at afterwards, so that a run that is
about to apply the event either finds the change or is found by it. The run that owns the event is marked: its input,
handed in again, is read again.

A COMMIT whose answer was lost is resolved by doing the change again: under the row's lock, the first attempt noted
which step of the event's history it was going to write. If that very step stands there with our name, action and
reason, the change took place and is not made twice, whatever has become of the event since.

Who was killed before the answer came does not know that much, and does the same again: if the newest step of the
history is this very change, for the same reason, and the event is still pending by it, it is answered as done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pgonce.db.transaction import Transaction
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.events import definition_of, fields_of, not_found, stored_id
from pgonce.engine.ownership import owner_name
from pgonce.errors import ConfigurationError, Permanent
from pgonce.model.canonical import declared, load_json, quoted
from pgonce.model.definition import Definition
from pgonce.model.identity import Difference, differences, payload_text
from pgonce.model.money import parse_cents

# A reason is a sentence for whoever reads the history, not an attachment.
WHY_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An event after an operator's change: which run owns it, what it was, and the fields that differ now.

    ``changed`` is False if this change was found done: the same was asked for before.
    """

    job: str
    source: str
    event_id: str
    action: str
    run_id: int
    line: int
    old_status: str
    old_error: str | None
    old_attempts: int
    amount_cents: int
    differences: tuple[Difference, ...] = ()
    changed: bool = True

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "version": 1,
            "job": self.job,
            "source": self.source,
            "event_id": self.event_id,
            "action": self.action,
            "status": "pending",
            "run": self.run_id,
            "line": self.line,
            "old_status": self.old_status,
            "old_error": self.old_error,
            "old_attempts": self.old_attempts,
            "amount_cents": self.amount_cents,
            "changed": self.changed,
            "differences": [{"field": item.field, "old": item.stored, "new": item.new} for item in self.differences],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """What an event is to say instead.

    ``amount`` is written as in the input (cents, or decimal text if the job has a scale). ``texts`` are new values by
    column as a CSV field would bring them, ``values`` as a JSON document would, for columns without a declared type.
    """

    amount: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class _Change:
    """One change of one event, which may be attempted several times. ``step`` and ``done`` are of the first attempt."""

    job: str
    source: str
    given_id: str
    action: str
    who: str
    why: str
    step: int | None = None
    done: Changed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locked:
    event_id: str
    status: str
    amount_cents: int
    payload: str | None
    attempts: int
    run_id: int
    line: int
    error: str | None
    granted: int


def reopen(clerk: Clerk, job: str, given_id: str, *, why: str, source: str = "") -> Changed:
    """Make a failed event pending again, or give a pending one whose attempts are used up new ones.

    Raises EventNotFound; Permanent when the event is completed, pruned or not in need of it; OutcomeUnknown.
    Safe to re-run: yes; a second call for the same reason finds it done, one for another reason is refused.
    """
    change = _Change(job, source, given_id, "reopened", owner_name(), reason_of(why))

    def body(transaction: Transaction) -> Changed:
        event = _lock(transaction, change)
        if _took_place(transaction, change, event):
            return _known(change)
        budget = _attempt_budget(transaction, job)
        allowed = budget + event.granted
        if event.status == "pending" and event.attempts < allowed:
            done = _done_before(transaction, change, event)
            if done is not None:
                return _changed(change, done, event.amount_cents, changed=False)
            raise Permanent(
                f"event {event.event_id!r} is pending, with {event.attempts} of {allowed} attempts used; there is "
                f"nothing to reopen. Hand in the input of run {event.run_id} again and it is tried.",
                job=job,
                event_id=event.event_id,
            )
        change.done = _changed(change, event, event.amount_cents)
        transaction.row(
            "reopen_events", job=job, sources=[source], event_ids=[event.event_id], who=change.who, why=change.why
        )
        return change.done

    return clerk.do(body)


def amend(clerk: Clerk, job: str, given_id: str, amendment: Amendment, *, why: str, source: str = "") -> Changed:
    """Give a failed or pending event another amount or other payload values, read by the rules its own row was read by.

    The event is pending afterwards and is applied as amended when the same input is handed in again; rows that still
    carry the old payload are replays of it.
    Raises EventNotFound; RowRefused for a value that the rules refuse; Permanent when the event is completed or pruned
    or when nothing would change; OutcomeUnknown.
    Safe to re-run: yes; a second call for the same reason finds it done, one for another reason is refused.
    """
    change = _Change(job, source, given_id, "amended", owner_name(), reason_of(why))

    def body(transaction: Transaction) -> Changed:
        event = _lock(transaction, change)
        if _took_place(transaction, change, event):
            return _known(change)
        definition = _definition_of_run(transaction, event.run_id)
        amount, payload = _amended(event, definition, amendment)
        found = _differences(event, definition, amount, payload)
        if not found:
            done = _done_before(transaction, change, event)
            if done is not None:
                return _changed(change, done, amount, _differences(done, definition, amount, payload), changed=False)
            raise Permanent(
                f"event {event.event_id!r} says so already; nothing was changed. To have it tried again as it is: "
                f"pgonce events reopen {event.event_id} --job {job} --why TEXT",
                job=job,
                event_id=event.event_id,
            )
        change.done = _changed(change, event, amount, found)
        transaction.row(
            "amend_event",
            job=job,
            source=source,
            event_id=event.event_id,
            amount_cents=amount,
            payload=payload,
            step=change.step,
            who=change.who,
            why=change.why,
        )
        return change.done

    return clerk.do(body)


def reason_of(why: str) -> str:
    """Check the reason of a change and return it. Raises ConfigurationError for one that says nothing, or too much."""
    if not why.strip() or len(why.encode("utf-8", "replace")) > WHY_BYTES_MAX:
        raise ConfigurationError(
            f"a change of an event is kept on record: say why, in 1 to {WHY_BYTES_MAX} bytes of text (--why TEXT)"
        )
    return why


def _lock(transaction: Transaction, change: _Change) -> _Locked:
    """Lock the event and look at it afterwards. Raises EventNotFound if it is not stored."""
    definition = definition_of(transaction, change.job)
    wanted = stored_id(change.given_id, definition)
    found = transaction.row("lock_events", job=change.job, sources=[change.source], event_ids=[wanted])
    if found is None:
        raise not_found(transaction, change.job, change.given_id, change.source, definition)
    _source, event_id, status, amount, payload, attempts, run_id, line, error, granted = found
    return _Locked(
        event_id=event_id,
        status=status,
        amount_cents=amount,
        payload=payload,
        attempts=attempts,
        run_id=run_id,
        line=line,
        error=error,
        granted=granted,
    )


def _took_place(transaction: Transaction, change: _Change, event: _Locked) -> bool:
    """Say whether an earlier attempt of this change was committed after all; else note the step that this one writes.

    Raises Permanent when the event is final.
    """
    steps = transaction.rows("read_history", job=change.job, source=change.source, event_id=event.event_id)
    ours = (change.step, change.action, change.who, change.why)
    if change.step is not None and any((row[0], row[1], row[7], row[8]) == ours for row in steps):
        return True
    change.step = 1 + (steps[-1][0] if steps else 0)
    if event.status not in ("failed", "pending"):
        what = "its payload was pruned" if event.status == "pruned" else "its effect is in the ledger"
        raise Permanent(
            f"event {event.event_id!r} of job {change.job!r} is completed and final ({what}); it cannot be "
            f"{change.action}. Book a compensating event with an id of its own.",
            job=change.job,
            event_id=event.event_id,
        )
    return False


def _done_before(transaction: Transaction, change: _Change, event: _Locked) -> _Locked | None:
    """Return the event as it was before this very change, if its newest step is that, and it is pending by it."""
    steps = transaction.rows("read_history", job=change.job, source=change.source, event_id=event.event_id)
    if not steps or event.status != "pending":
        return None
    _step, action, status, amount, payload, error, attempts, _who, why = steps[-1][:9]
    if (action, why) != (change.action, change.why):
        return None
    return replace(
        event, status=status, amount_cents=amount, payload=payload or event.payload, error=error, attempts=attempts
    )


def _known(change: _Change) -> Changed:
    assert change.done is not None
    return change.done


def _changed(
    change: _Change, event: _Locked, amount: int, found: tuple[Difference, ...] = (), *, changed: bool = True
) -> Changed:
    return Changed(
        job=change.job,
        source=change.source,
        event_id=event.event_id,
        action=change.action,
        run_id=event.run_id,
        line=event.line,
        old_status=event.status,
        old_error=event.error,
        old_attempts=event.attempts,
        amount_cents=amount,
        differences=found,
        changed=changed,
    )


def _attempt_budget(transaction: Transaction, job: str) -> int:
    found = transaction.row("read_job", job=job)
    assert found is not None
    return int(found[2])


def _definition_of_run(transaction: Transaction, run_id: int) -> Definition:
    found = transaction.row("read_definitions_of_runs", run_ids=[run_id])
    if found is None:
        raise Permanent(
            f"run {run_id}, which brought the event, is not stored; pgonce reconcile shows what else is missing"
        )
    return Definition.from_spec(found[1])


def _amended(event: _Locked, definition: Definition, amendment: Amendment) -> tuple[int, str]:
    """Work out the new amount and payload. Raises RowRefused or Permanent for what cannot be."""
    amount = _new_amount(event, definition, amendment.amount)
    if not amendment.texts and not amendment.values:
        return amount, event.payload or ""
    fields = fields_of(event.payload, definition) or {}
    for column, text in amendment.texts.items():
        _check_column(column, definition)
        kind = definition.types.get(column)
        fields[column] = declared(text, kind, column) if kind else text
    for column, value in amendment.values.items():
        _check_column(column, definition)
        kind = definition.types.get(column)
        if kind == "json":
            fields[column] = value
        else:
            fields[column] = declared(value, kind, column) if kind else value
    return amount, payload_text(fields, columns=definition.columns, omit=definition.outside_payload)


def _differences(event: _Locked, definition: Definition, amount: int, payload: str) -> tuple[Difference, ...]:
    return differences(
        stored_payload=event.payload or "",
        stored_columns=definition.columns,
        stored_amount=event.amount_cents,
        new_payload=payload,
        new_columns=definition.columns,
        new_amount=amount,
        amount_name=definition.amount or "amount",
    )


def _new_amount(event: _Locked, definition: Definition, text: str | None) -> int:
    if text is None:
        return event.amount_cents
    if definition.amount is None:
        raise Permanent("the job's events have no amount (it was defined without --amount), so there is none to amend")
    cents = parse_cents(text, scale=definition.amount_scale, column=definition.amount)
    if cents < 0:
        raise Permanent(
            f"the amount {text} is below zero, and an effect cannot be: the event would fail again. Nothing was "
            "changed."
        )
    return cents


def _check_column(column: str, definition: Definition) -> None:
    if column == definition.amount:
        raise Permanent(f"column {quoted(column)} is the amount; amend it with --amount")
    if column in definition.key or column == definition.source_column:
        raise Permanent(
            f"column {quoted(column)} is part of the event's identity, which never changes; hand in the right row as "
            "an event of its own"
        )
    known = definition.columns
    if column in definition.ignore or (known is not None and column not in known):
        raise Permanent(
            f"column {quoted(column)} is not part of the payload; it has "
            f"{', '.join(map(quoted, known)) if known else 'every field but the key and ignored ones'}"
        )


def json_value(text: str, column: str) -> object:
    """Read a value that was given as JSON text, losing nothing. Raises RowRefused naming the column."""
    return load_json(text, field=column)
