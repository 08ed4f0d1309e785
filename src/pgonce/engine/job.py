"""A job and its definition: stored at its first run, guarded ever after."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from pgonce.db.transaction import Transaction
from pgonce.engine.bookkeeping import Clerk
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
    if stored.definition.differences(given) and _forget_unused(transaction, job):
        version = stored.version + 1
        spec, why = json.dumps(given.resolved(header).spec()), f"nothing was settled under version {stored.version}"
        transaction.rows("insert_definition", job=job, version=version, spec=spec, who=who, why=why)
        transaction.rows("set_job_version", job=job, version=version)
        stored = find(transaction, job)
        assert stored is not None
    refuse_other(stored, given)
    return stored


def _forget_unused(transaction: Transaction, job: str) -> bool:
    """Free a job's name of a definition under which nothing was committed and no start is alive; say whether it is.

    A first run that failed at once (a typo in the effect) must not bind the name for good. The runs are locked: one
    that is being acquired meanwhile finds itself gone, and begins anew.
    """
    transaction.row("lock_job", job=job)
    run_ids = [row[0] for row in transaction.rows("lock_runs_of_job", job=job)]
    found = transaction.row("job_in_use", job=job)
    if found is None or found[0]:
        return False
    transaction.rows("forget_starts", run_ids=run_ids)
    transaction.rows("forget_runs", run_ids=run_ids)
    return True


def refuse_other(stored: StoredJob, given: Definition) -> None:
    """Raise DefinitionChanged, naming what differs, if a definition is not the one in force."""
    found = stored.definition.differences(given)
    if found:
        raise DefinitionChanged(
            f"job {stored.job!r} is stored with another definition: {'; '.join(found)}. Run it as it is stored, use "
            f"another job name, or change it on record: pgonce job change {stored.job} ... --why TEXT",
            job=stored.job,
        )


def change(transaction: Transaction, job: str, given: Definition, *, who: str, why: str) -> StoredJob:
    """Put another definition in force, on record. The payload's columns are found anew at the next run.

    Returns the job as it is stored already if nothing differs.
    Raises ConfigurationError if there is no such job, or no reason is given.
    Safe to re-run: yes; the second time nothing differs, and no version is added.
    """
    if not why.strip():
        raise ConfigurationError("a change of a definition is kept on record: say why with --why")
    transaction.row("lock_job", job=job)
    stored = find(transaction, job)
    if stored is None:
        raise ConfigurationError(f"there is no job {job!r}; its definition is stored by its first run")
    if not stored.definition.differences(given):
        return stored
    version = stored.version + 1
    transaction.rows("insert_definition", job=job, version=version, spec=json.dumps(given.spec()), who=who, why=why)
    transaction.rows("set_job_version", job=job, version=version)
    changed = find(transaction, job)
    assert changed is not None
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A job after a change; ``changed`` says whether this change made its version, or it was like that before."""

    stored: StoredJob
    changed: bool


def change_on_record(clerk: Clerk, job: str, given: Definition, *, who: str, why: str) -> Changed:
    """Change a job's definition for certain: one version, also if the answer of a COMMIT was lost.

    Raises ConfigurationError if there is no such job, or no reason is given.
    Safe to re-run: yes.
    """
    made: set[int] = set()

    def body(transaction: Transaction) -> Changed:
        transaction.row("lock_job", job=job)
        before = find(transaction, job)
        stored = change(transaction, job, given, who=who, why=why)
        if before is None or stored.version != before.version:
            made.add(stored.version)
            return Changed(stored=stored, changed=True)
        last = transaction.rows("list_definitions", job=job)[-1]
        return Changed(stored=stored, changed=last[0] in made and (last[2], last[3]) == (who, why))

    return clerk.do(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a job's definition: what it says, who put it in force, why and when."""

    version: int
    definition: Definition
    who: str
    why: str
    created_at: datetime

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "version": self.version,
            "definition": self.definition.spec(),
            "who": self.who,
            "why": self.why,
            "created_at": self.created_at.isoformat(),
        }


def versions(transaction: Transaction, job: str) -> list[Version]:
    """List every version of a job's definition, the first one first; empty if there is no such job.

    Safe to re-run: it only reads.
    """
    return [
        Version(version=version, definition=Definition.from_spec(spec), who=who, why=why, created_at=created_at)
        for version, spec, who, why, created_at in transaction.rows("list_definitions", job=job)
    ]


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
