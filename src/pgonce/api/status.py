"""``pgonce status`` and ``pgonce runs``: how jobs and runs stand."""

from __future__ import annotations

from collections.abc import Callable

from pgonce.api.database import opened
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.engine.status import RUNS_SHOWN, UNFINISHED_SHOWN_MAX, JobStatus, RunStatus, job_statuses, run_statuses


def status(
    job: str | None = None,
    *,
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    tell: Callable[[str], None] = lambda _text: None,
) -> tuple[list[JobStatus], list[RunStatus]]:
    """Return every job (or one) with its events and findings, and the newest runs that are not finished.

    Safe to re-run: it only reads.
    """
    with opened(dsn, embedded=embedded, schema=schema, application="pgonce/status", tell=tell) as clerk:
        return job_statuses(clerk, job), run_statuses(clerk, job, limit=UNFINISHED_SHOWN_MAX, unfinished=True)


def runs(
    job: str | None = None,
    *,
    limit: int = RUNS_SHOWN,
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    tell: Callable[[str], None] = lambda _text: None,
) -> list[RunStatus]:
    """Return the newest runs of every job, or of one, the newest first. Safe to re-run: it only reads."""
    with opened(dsn, embedded=embedded, schema=schema, application="pgonce/runs", tell=tell) as clerk:
        return run_statuses(clerk, job, limit=limit)
