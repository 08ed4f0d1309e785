"""Have events tried again: grant more attempts to those that used theirs up, reopen those that failed; on record.

A start tries an event only so often, and all starts together only as often as the job's budget says. After that the
event stays pending until somebody grants it more, with a reason. Nothing is tried here: the next start over the input
does, whoever begins it.

Events are changed in small transactions, each locked first and looked at afterwards. A grant is for an event whose
attempts are used up at that moment, and no other; so that a command that is done again finds nothing left to grant. A
COMMIT whose answer was lost is resolved by looking at the history for what this very command wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgonce.db.transaction import Transaction
from pgonce.engine.amend import reason_of
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.compare import Stored
from pgonce.engine.events import definition_of, not_found, stored_id
from pgonce.engine.ownership import owner_name
from pgonce.errors import ConfigurationError, EventNotFound
from pgonce.model.limits import ATTEMPTS
from pgonce.model.row import Key

# Events that one transaction changes: locks are held for a moment only, and any number is done in constant memory.
CHANGED_AT_A_TIME = 1_000

# Attempts that one grant may give. More tries would not tell more than a thousand did; the reason lies elsewhere.
GRANT_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which events: those of a job, of one run of it, or of one source (None: any)."""

    job: str
    run_id: int | None = None
    source: str | None = None

    def as_parameters(self) -> dict[str, object]:
        """Return the values for a statement."""
        return {"job": self.job, "run_id": self.run_id, "source": self.source}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedEvent:
    """What a retry did with one event that was named.

    ``action`` is ``granted`` or ``reopened``; ``waiting`` if it has attempts left and needs nothing; ``final`` if it is
    completed. ``attempts_left`` counts from now on.
    """

    source: str
    event_id: str
    action: str
    status: str
    attempts_left: int
    run_id: int
    line: int

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document."""
        return {
            "source": self.source,
            "event_id": self.event_id,
            "action": self.action,
            "status": self.status,
            "attempts_left": self.attempts_left,
            "run": self.run_id,
            "line": self.line,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What a retry came to: events ``granted`` that many attempts more (``budget``), events ``reopened``.

    ``waiting`` are the events in question that the next run over their inputs will try, those among them; ``events``
    are those that were named, if any were.
    """

    scope: Scope
    budget: int
    granted: int = 0
    reopened: int = 0
    waiting: int = 0
    events: tuple[RetriedEvent, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "version": 1,
            "job": self.scope.job,
            "run": self.scope.run_id,
            "source": self.scope.source,
            "granted": self.granted,
            "budget": self.budget,
            "reopened": self.reopened,
            "waiting": self.waiting,
            "events": [event.as_dict() for event in self.events],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """One call, told from all others by who makes it, why, and when it began on the database's clock."""

    who: str
    why: str
    since: Any

    def as_parameters(self) -> dict[str, object]:
        return {"who": self.who, "why": self.why, "since": self.since}


def grant_used_up(
    clerk: Clerk,
    job: str | None,
    *,
    why: str,
    budget: int = ATTEMPTS,
    run_id: int | None = None,
    source: str | None = None,
) -> Retried:
    """Give every pending event whose attempts are used up ``budget`` attempts more.

    ``job`` None: that of the run, or the only one there is. Raises ConfigurationError, EventNotFound, OutcomeUnknown.
    Safe to re-run: a second call finds attempts left and grants nothing; ``waiting`` says that they are there.
    """
    _check_budget(budget)
    scope, command = _begin(clerk, job, why, Scope(job="", run_id=run_id, source=source))
    granted = _bulk(clerk, scope, command, "lock_used_up_events", "grant_attempts", budget=budget)
    return Retried(scope=scope, budget=budget, granted=granted, waiting=_waiting(clerk, scope))


def reopen_failed(
    clerk: Clerk, job: str | None, *, why: str, run_id: int | None = None, source: str | None = None
) -> Retried:
    """Reopen every failed event of a job, of one run or of one source, each with all its attempts.

    ``job`` None: that of the run, or the only one there is. Raises ConfigurationError, EventNotFound, OutcomeUnknown.
    Safe to re-run: yes; it goes on with those that are still failed.
    """
    scope, command = _begin(clerk, job, why, Scope(job="", run_id=run_id, source=source))
    reopened = _bulk(clerk, scope, command, "lock_failed_events", "reopen_events")
    return Retried(scope=scope, budget=0, reopened=reopened, waiting=_waiting(clerk, scope))


def retry_events(
    clerk: Clerk, job: str | None, given_ids: Sequence[str], *, why: str, budget: int = ATTEMPTS, source: str = ""
) -> Retried:
    """Have the events of these ids tried again, whatever holds them up: one that failed is reopened, one whose attempts
    are used up is given ``budget`` more. All of them in one transaction.

    Raises EventNotFound, with nothing done, if one is not stored; ConfigurationError, OutcomeUnknown.
    Safe to re-run: a second call finds nothing to do and says so of each event.
    """
    _check_budget(budget)
    if not 0 < len(given_ids) <= CHANGED_AT_A_TIME:
        raise ConfigurationError(f"{len(given_ids)} ids were given; it is from 1 to {CHANGED_AT_A_TIME} at a time")
    scope, command = _begin(clerk, job, why, Scope(job="", source=source))

    def body(transaction: Transaction) -> tuple[RetriedEvent, ...]:
        locked, total = _lock(transaction, scope.job, source, given_ids)
        before = _done_before(transaction, scope, command, list(locked))
        actions = {key: before.get(key) or _due(event, total) for key, event in locked.items()}
        new = {key: action for key, action in actions.items() if key not in before}
        _write(transaction, scope, command, "grant_attempts", _keys_of(new, "granted"), budget=budget)
        _write(transaction, scope, command, "reopen_events", _keys_of(new, "reopened"))
        return tuple(_told(key, locked[key], action, total, budget, key in before) for key, action in actions.items())

    events = clerk.do(body)
    done = Counter(event.action for event in events)
    return Retried(
        scope=scope,
        budget=budget,
        granted=done["granted"],
        reopened=done["reopened"],
        waiting=len(events) - done["final"],
        events=events,
    )


def _check_budget(budget: int) -> None:
    if not 1 <= budget <= GRANT_MAX:
        raise ConfigurationError(f"--budget {budget}: it is from 1 to {GRANT_MAX} attempts")


def _begin(clerk: Clerk, job: str | None, why: str, scope: Scope) -> tuple[Scope, _Command]:
    """Name the job, and note when this command began. Raises EventNotFound for a run that the job does not have."""
    who, reason = owner_name(), reason_of(why)

    def body(transaction: Transaction) -> tuple[str, Any]:
        of_run = transaction.row("job_of_run", run_id=scope.run_id) if scope.run_id else None
        if scope.run_id and (of_run is None or job not in (None, of_run[0])):
            whose = f"of job {job!r}" if job else "in this database"
            raise EventNotFound(f"there is no run {scope.run_id} {whose}; pgonce runs lists them", job=job)
        name = job or (of_run[0] if of_run else _only_job(transaction))
        definition_of(transaction, name)
        [(now,)] = transaction.rows("database_time")
        return name, now

    name, since = clerk.do(body, commit=False)
    return replace(scope, job=name), _Command(who=who, why=reason, since=since)


def _only_job(transaction: Transaction) -> str:
    names = [str(row[0]) for row in transaction.rows("list_jobs", job=None)]
    if len(names) != 1:
        found = f"there are {len(names)}: {', '.join(map(repr, names))}" if names else "there is none"
        raise ConfigurationError(f"name the job with --job; {found}")
    return names[0]


def _bulk(clerk: Clerk, scope: Scope, command: _Command, lock: str, change: str, **values: object) -> int:
    """Change all events that a statement finds, some in a transaction; return how many were, as the history says."""

    def some(transaction: Transaction) -> int:
        keys = transaction.rows(lock, **scope.as_parameters(), **command.as_parameters(), limit=CHANGED_AT_A_TIME)
        _write(transaction, scope, command, change, [(key[0], key[1]) for key in keys], **values)
        return len(keys)

    while clerk.do(some):
        pass
    action = "granted" if change == "grant_attempts" else "reopened"
    counted = clerk.do(
        lambda tx: tx.rows("count_changed", job=scope.job, action=action, **command.as_parameters()), commit=False
    )
    return int(counted[0][0])


def _write(
    transaction: Transaction, scope: Scope, command: _Command, change: str, keys: Sequence[Key], **values: object
) -> None:
    if keys:
        transaction.row(
            change,
            job=scope.job,
            sources=[key[0] for key in keys],
            event_ids=[key[1] for key in keys],
            who=command.who,
            why=command.why,
            **values,
        )


def _waiting(clerk: Clerk, scope: Scope) -> int:
    [(count,)] = clerk.do(lambda tx: tx.rows("count_waiting", **scope.as_parameters()), commit=False)
    return int(count)


def _lock(transaction: Transaction, job: str, source: str, given_ids: Sequence[str]) -> tuple[dict[Key, Stored], int]:
    """Lock the named events in key order and look at them, with the job's budget. Raises EventNotFound for one not
    stored."""
    definition = definition_of(transaction, job)
    wanted = {stored_id(given, definition): given for given in given_ids}
    found = transaction.rows("lock_events", job=job, sources=[source] * len(wanted), event_ids=sorted(wanted))
    locked = {
        (source, event_id): Stored(status=status, run_id=run_id, line=line, attempts=attempts, granted=granted)
        for _source, event_id, status, _amount, _payload, attempts, run_id, line, _error, granted in found
    }
    for event_id, given in wanted.items():
        if (source, event_id) not in locked:
            raise not_found(transaction, job, given, source, definition)
    [(_version, _spec, total)] = transaction.rows("read_job", job=job)
    return {(source, event_id): locked[source, event_id] for event_id in wanted}, int(total)


def _done_before(transaction: Transaction, scope: Scope, command: _Command, keys: Sequence[Key]) -> dict[Key, str]:
    """Find what an earlier attempt of this command, whose COMMIT was in doubt, did after all."""
    found = transaction.rows(
        "changes_since",
        job=scope.job,
        sources=[key[0] for key in keys],
        event_ids=[key[1] for key in keys],
        **command.as_parameters(),
    )
    return {(source, event_id): action for source, event_id, action in found}


def _due(event: Stored, total: int) -> str:
    if event.status == "failed":
        return "reopened"
    if event.status != "pending":
        return "final"
    return "waiting" if event.attempts_left(total) else "granted"


def _keys_of(actions: Mapping[Key, str], wanted: str) -> list[Key]:
    return [key for key, action in actions.items() if action == wanted]


def _told(key: Key, event: Stored, action: str, total: int, budget: int, is_done_before: bool) -> RetriedEvent:
    left = event.attempts_left(total) if event.status == "pending" else 0
    if not is_done_before:
        left = {"granted": budget, "reopened": total}.get(action, left)
    status = event.status if is_done_before or action == "final" else "pending"
    return RetriedEvent(
        source=key[0],
        event_id=key[1],
        action=action,
        status=status,
        attempts_left=left,
        run_id=event.run_id,
        line=event.line,
    )
