"""``pgonce.reconcile``: do the books balance?"""

from __future__ import annotations

from typing import Any

from pgonce.api.database import opened
from pgonce.engine.reconcile import Reconciliation
from pgonce.engine.reconcile import reconcile as reconcile_with


def reconcile(*, job: str | None = None, run_id: int | None = None, **where: Any) -> Reconciliation:
    """Check that every row read has one result and every completed event its effect, per run, source and in cents.

    Looks at all jobs, at one job, or at one run; ``where`` chooses the database (``dsn``,
    ``embedded``, ``schema``).
    Returns what was found, each discrepancy named; ``balanced`` says whether there is none.
    Raises ConfigurationError for an unknown job or run, Unreachable.
    Safe to re-run: yes; it changes nothing but to confirm finished runs after a restore, if all balances.
    """
    with opened(**{"application": "pgonce/reconcile", **where}) as clerk:
        return reconcile_with(clerk, job=job, run_id=run_id)
