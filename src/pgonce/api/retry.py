"""``pgonce retry``: have events tried again that used up their attempts or failed, on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgonce.api.database import opened
from pgonce.engine import retry as changes
from pgonce.engine.retry import Retried
from pgonce.model.limits import ATTEMPTS


def grant(
    *,
    why: str,
    job: str | None = None,
    run_id: int | None = None,
    source: str | None = None,
    budget: int = ATTEMPTS,
    **where: Any,
) -> Retried:
    """Give every pending event whose attempts are used up ``budget`` attempts more, for any start to use.

    ``job`` None: that of the run, or the only one there is; ``source`` None: any. ``where`` chooses the database.
    Raises ConfigurationError, EventNotFound (no such run), OutcomeUnknown.
    Safe to re-run: a second call finds attempts left and grants nothing.
    """
    with opened(**_named(where)) as clerk:
        return changes.grant_used_up(clerk, job, why=why, budget=budget, run_id=run_id, source=source)


def reopen(
    *, why: str, job: str | None = None, run_id: int | None = None, source: str | None = None, **where: Any
) -> Retried:
    """Reopen every failed event of a job, of one run of it or of one source.

    Raises ConfigurationError, EventNotFound (no such run), OutcomeUnknown.
    Safe to re-run: yes; it goes on with those that are still failed.
    """
    with opened(**_named(where)) as clerk:
        return changes.reopen_failed(clerk, job, why=why, run_id=run_id, source=source)


def events(
    event_ids: Sequence[str],
    *,
    why: str,
    job: str | None = None,
    source: str = "",
    budget: int = ATTEMPTS,
    **where: Any,
) -> Retried:
    """Have these events tried again: one that failed is reopened, one that used up its attempts gets ``budget`` more.

    Raises EventNotFound, with nothing done, if one is not stored; ConfigurationError, OutcomeUnknown.
    Safe to re-run: a second call finds nothing to do, and says so of each event.
    """
    with opened(**_named(where)) as clerk:
        return changes.retry_events(clerk, job, event_ids, why=why, budget=budget, source=source)


def _named(where: dict[str, Any]) -> dict[str, Any]:
    return {"application": "pgonce/retry", **where}
