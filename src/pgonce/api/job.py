"""``pgonce job``: definitions in force, their history, and how they are changed on record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pgonce.api.database import opened
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.engine.bookkeeping import read_only
from pgonce.engine.job import Changed, Version, change_on_record, versions
from pgonce.engine.ownership import owner_name
from pgonce.engine.run import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job in a list: the version in force, who put it there and why, and since when the job is known."""

    job: str
    version: int
    attempt_budget: int
    key: tuple[str, ...]
    who: str
    why: str
    created_at: datetime
    changed_at: datetime

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "job": self.job,
            "version": self.version,
            "attempt_budget": self.attempt_budget,
            "key": list(self.key),
            "who": self.who,
            "why": self.why,
            "created_at": self.created_at.isoformat(),
            "changed_at": self.changed_at.isoformat(),
        }


def list_jobs(
    *,
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    tell: Callable[[str], None] = lambda _text: None,
) -> list[JobLine]:
    """List all jobs by name. Safe to re-run: it only reads."""
    with opened(dsn, embedded=embedded, schema=schema, application="pgonce/job", tell=tell) as clerk:
        found = clerk.do(lambda transaction: read_only(transaction).rows("list_jobs", job=None), commit=False)
    return [
        JobLine(
            job=job,
            version=version,
            attempt_budget=attempt_budget,
            key=tuple(spec["key"]),
            who=who,
            why=why,
            created_at=created_at,
            changed_at=changed_at,
        )
        for job, version, attempt_budget, created_at, spec, who, why, changed_at in found
    ]


def show_job(
    job: str,
    *,
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    tell: Callable[[str], None] = lambda _text: None,
) -> list[Version]:
    """Return every version of a job's definition, the one in force last; empty if there is no such job.

    Safe to re-run: it only reads.
    """
    with opened(dsn, embedded=embedded, schema=schema, application="pgonce/job", tell=tell) as clerk:
        return clerk.do(lambda transaction: versions(read_only(transaction), job), commit=False)


def change_job(
    what: Order,
    *,
    why: str,
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    tell: Callable[[str], None] = lambda _text: None,
) -> Changed:
    """Put the definition of an order in force for its job, on record with who and why.

    ``what`` is put together by ``pgonce.api.run.order``. Raises ConfigurationError if there is no such job.
    Safe to re-run: yes; the second time nothing differs, and no version is added.
    """
    with opened(dsn, embedded=embedded, schema=schema, application="pgonce/job", tell=tell) as clerk:
        return change_on_record(clerk, what.job, what.definition, who=owner_name(), why=why)
