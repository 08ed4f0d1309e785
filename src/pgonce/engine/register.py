"""Register a run: the job over one content, recognised by what the content is and not by its name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pgonce.db.transaction import Transaction
from pgonce.engine.job import StoredJob
from pgonce.errors import ContentTaken
from pgonce.sources import Input


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredRun:
    """A run as it is registered; ``outcome`` is what was counted when it finished, None before that."""

    run_id: int
    epoch: int
    finished: bool
    outcome: dict[str, Any] | None
    touched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What makes a run the same run: content, job, kind, source, definition and the way the content is read."""

    job: str
    version: int
    kind: str
    source: str
    digest: str
    input_bytes: int
    reading: str

    @classmethod
    def of(cls, source: Input, stored: StoredJob, *, kind: str, source_text: str) -> Identity:
        """Take the identity of a run from an open input and the stored job."""
        return cls(
            job=stored.job,
            version=stored.version,
            kind=kind,
            source=source_text,
            digest=source.digest,
            input_bytes=source.size,
            reading=json.dumps(source.options.as_dict(), sort_keys=True),
        )


def register(transaction: Transaction, identity: Identity, *, also: bool) -> RegisteredRun:
    """Find the run of this identity, or register it.

    Raises ContentTaken, naming the run, when the content was taken under another identity and ``also`` is not said.
    Safe to re-run: yes.
    """
    found = find(transaction, identity)
    if found is not None:
        return found
    transaction.row("lock_content", digest=identity.digest)
    refuse_taken(transaction, identity, also=also)
    transaction.row(
        "insert_run",
        job=identity.job,
        version=identity.version,
        kind=identity.kind,
        source=identity.source,
        digest=identity.digest,
        reading=identity.reading,
        input_bytes=identity.input_bytes,
    )
    found = find(transaction, identity)
    assert found is not None
    return found


def refuse_taken(transaction: Transaction, identity: Identity, *, also: bool) -> None:
    """Raise ContentTaken, naming the run, if the content was taken under another identity and ``also`` is not said.

    Safe to re-run: it only reads.
    """
    found = transaction.rows("find_content", digest=identity.digest)
    others = [run for run in found if not _names_the_same_events(run, identity)]
    if others and not also and identity.input_bytes:
        raise ContentTaken(_taken(others[-1], identity), job=identity.job)


def find(transaction: Transaction, identity: Identity) -> RegisteredRun | None:
    """Find the run of this identity. Safe to re-run: it only reads."""
    row = transaction.row(
        "find_run",
        digest=identity.digest,
        job=identity.job,
        kind=identity.kind,
        source=identity.source,
        version=identity.version,
        reading=identity.reading,
    )
    if row is None:
        return None
    run_id, epoch, finished_at, outcome, touched = row
    return RegisteredRun(run_id=run_id, epoch=epoch, finished=finished_at is not None, outcome=outcome, touched=touched)


def changed_under_name(transaction: Transaction, identity: Identity, input_name: str) -> str | None:
    """Say in words if an input of this name was read before with other content; None if not."""
    if input_name == "-":
        return None
    last = transaction.row("last_input", job=identity.job, source=identity.source, input_name=input_name)
    if last is None or last[1] == identity.digest:
        return None
    run_id, _digest, finished_at, _position, lines = last
    state = "finished" if finished_at else f"settled up to line {lines}"
    return (
        f"{input_name} has other content than when it was last read (run {run_id}, {state}); this is a run of its own, "
        "and events that were applied before are replays"
    )


def _names_the_same_events(run: tuple[Any, ...], identity: Identity) -> bool:
    """Say whether the rows of a run are the same events under this identity; adopted or applied, they are replays."""
    _run_id, job, _kind, source, version, reading, _created = run
    given = (identity.job, identity.source, identity.version, json.loads(identity.reading))
    return (job, source, version, json.loads(reading)) == given


def _taken(run: tuple[Any, ...], identity: Identity) -> str:
    run_id, job, _kind, source, version, reading, created_at = run
    differing = [
        f"{name} {stored!r}, now {given!r}"
        for name, stored, given in (
            ("job", job, identity.job),
            ("source", source, identity.source),
            ("definition version", version, identity.version),
            ("reading options", json.loads(reading), json.loads(identity.reading)),
        )
        if stored != given
    ]
    same_job = (job, source) == (identity.job, identity.source)
    consequence = (
        "If the key is the same, its events are known and their rows are replays; if it is not, every row would be "
        "applied again: pgonce plan tells"
        if same_job
        else "Under another identity every row of it would be applied again"
    )
    return (
        f"this content was already taken by run {run_id} on {created_at:%Y-%m-%d %H:%M}, under {'; '.join(differing)}. "
        f"{consequence}. If that is meant, say --also."
    )
