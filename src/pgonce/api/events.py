"""``pgonce.events``: look at stored events, reopen and amend them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgonce.api.database import opened
from pgonce.engine import amend as changes
from pgonce.engine import events
from pgonce.engine.amend import Amendment, Changed
from pgonce.engine.events import LISTED_EVENTS, Event, ListedEvent
from pgonce.engine.retry import reopen_failed


def get(event_id: str, *, job: str, source: str = "", **where: Any) -> Event:
    """Read one event with its effect, its history and the findings that name it.

    ``event_id`` is text; of several key columns a JSON array of texts in the job's order. ``where`` chooses the
    database (``dsn``, ``embedded``, ``schema``).
    Raises EventNotFound, ConfigurationError, Unreachable.
    Safe to re-run: it only reads.
    """
    with opened(**_named(where)) as clerk:
        return clerk.do(lambda tx: events.get_event(tx, job, event_id, source=source), commit=False, snapshot=True)


def list_(
    *, job: str, status: str | None = None, run_id: int | None = None, limit: int = LISTED_EVENTS, **where: Any
) -> list[ListedEvent]:
    """List events of a job in the order of their identity. Safe to re-run: it only reads."""
    with opened(**_named(where)) as clerk:
        return clerk.do(lambda tx: events.list_events(tx, job, status=status, run_id=run_id, limit=limit), commit=False)


def reopen(event_id: str, *, job: str, why: str, source: str = "", **where: Any) -> Changed:
    """Make a failed event pending again; hand its input in again to have it tried.

    Raises EventNotFound, Permanent (it is completed, or not in need of it), OutcomeUnknown.
    Safe to re-run: yes; a second call is refused and records nothing.
    """
    with opened(**_named(where)) as clerk:
        return changes.reopen(clerk, job, event_id, why=why, source=source)


def reopen_all_failed(*, job: str, why: str, run_id: int | None = None, **where: Any) -> int:
    """Reopen every failed event of a job or of one run of it; returns how many.

    Raises EventNotFound for a run that the job does not have. Safe to re-run: yes.
    """
    with opened(**_named(where)) as clerk:
        return reopen_failed(clerk, job, why=why, run_id=run_id).reopened


def amend(
    event_id: str,
    *,
    job: str,
    why: str,
    source: str = "",
    amount: str | int | None = None,
    texts: Mapping[str, str] | None = None,
    values: Mapping[str, object] | None = None,
    **where: Any,
) -> Changed:
    """Give a failed or pending event another amount or payload; hand its input in again to have it applied so.

    ``amount`` is written as in the input; ``texts`` are values as a CSV field brings them, ``values`` as JSON does.
    Raises EventNotFound, RowRefused, Permanent (it is completed, or nothing would change), OutcomeUnknown.
    Safe to re-run: yes; a second call is refused and records nothing.
    """
    amendment = Amendment(amount=None if amount is None else str(amount), texts=texts or {}, values=values or {})
    with opened(**_named(where)) as clerk:
        return changes.amend(clerk, job, event_id, amendment, why=why, source=source)


def _named(where: Mapping[str, Any]) -> dict[str, Any]:
    return {"application": "pgonce/events", **where}
