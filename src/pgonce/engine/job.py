"""A job and its definition: stored at its first run, guarded ever after."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pgonce.db.transaction import Transaction
from pgonce.errors import ConfigurationError, DefinitionChanged
from pgonce.model.definition import Definition

JOB_NAME_BYTES_MAX = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as it is stored: the definition in force, its version, and how often an event of it may be attempted."""

    job: str
    version: int
    definition: Definition
    attempt_budget: int


def check_name(job: str) -> None:
    """Refuse a name that cannot be stored or typed again. Raises ConfigurationError."""
    if not job or job != job.strip() or not job.isprintable() or len(job.encode()) > JOB_NAME_BYTES_MAX:
        raise ConfigurationError(
            f"{job!r} cannot be the name of a job: it needs 1 to {JOB_NAME_BYTES_MAX} bytes of printable text, with no "
            "blank at its ends"
        )


def find(transaction: Transaction, job: str) -> StoredJob | None:
    """Read a job with its definition in force; None if there is no such job. Safe to re-run: it only reads."""
    found = transaction.row("read_job", job=job)
    if found is None:
        return None
    version, spec, attempt_budget = found
    return StoredJob(job=job, version=version, definition=Definition.from_spec(spec), attempt_budget=attempt_budget)


def declare(
    transaction: Transaction, job: str, given: Definition, header: tuple[str, ...] | None, who: str
) -> StoredJob:
    """Store a job's definition at its first run, or make sure that the one given is the one stored.

    Raises DefinitionChanged naming what differs.
    Safe to re-run: yes.
    """
    check_name(job)
    stored = find(transaction, job)
    if stored is None:
        resolved = given.resolved(header)
        transaction.rows("insert_job", job=job)
        transaction.rows(
            "insert_definition", job=job, version=1, spec=json.dumps(resolved.spec()), who=who, why="first run"
        )
        stored = find(transaction, job)
        assert stored is not None
    found = stored.definition.differences(given)
    if found:
        raise DefinitionChanged(
            f"job {job!r} is stored with another definition: {'; '.join(found)}. Run it as it is stored, use another "
            f"job name, or change it on record: pgonce job change {job} ... --why TEXT",
            job=job,
        )
    return stored


def change(transaction: Transaction, job: str, given: Definition, *, who: str, why: str) -> StoredJob:
    """Put another definition in force, on record. The payload's columns are found anew at the next run.

    Raises ConfigurationError if there is no such job or nothing differs.
    Safe to re-run: the second time it says that nothing differs.
    """
    if not why.strip():
        raise ConfigurationError("a change of a definition is kept on record: say why with --why")
    transaction.row("lock_job", job=job)
    stored = find(transaction, job)
    if stored is None:
        raise ConfigurationError(f"there is no job {job!r}; its definition is stored by its first run")
    if not stored.definition.differences(given):
        raise ConfigurationError(f"job {job!r} has this definition already; nothing was changed")
    version = stored.version + 1
    transaction.rows("insert_definition", job=job, version=version, spec=json.dumps(given.spec()), who=who, why=why)
    transaction.rows("set_job_version", job=job, version=version)
    changed = find(transaction, job)
    assert changed is not None
    return changed


def fix_columns(transaction: Transaction, stored: StoredJob, header: tuple[str, ...] | None) -> StoredJob:
    """After a change, fix the payload's columns by the first input that is read with the new definition.

    Safe to re-run: yes; columns that are fixed stay.
    """
    resolved = stored.definition.resolved(header)
    if resolved.columns == stored.definition.columns:
        return stored
    transaction.row("lock_job", job=stored.job)
    again = find(transaction, stored.job)
    assert again is not None
    if again.definition.columns is None:
        resolved = again.definition.resolved(header)
        transaction.rows(
            "fix_definition_columns", job=again.job, version=again.version, spec=json.dumps(resolved.spec())
        )
        again = find(transaction, stored.job)
        assert again is not None
    return again
