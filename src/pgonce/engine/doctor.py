"""Look a database over: is the schema what the migrations make, and does anything around it endanger or delay jobs?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pgonce.db import drift
from pgonce.db.reference import in_force
from pgonce.db.schema import require_current, unknown_builds
from pgonce.db.transaction import Transaction
from pgonce.engine.ownership import POOLED_SILENCE_S

PROBLEM = "problem"
"""It has to be put right; the command exits 3."""
INFO = "info"
"""It is worth knowing; the command exits 0."""

MAJORS = range(15, 19)
"""The major releases of PostgreSQL that the tests run on."""

# A chunk's transaction is bounded by a minute; what idles in one for five times as long belongs to nobody's chunk.
IDLE_S = 300.0

# A person reads the list; what is behind the first hundred is more of the same.
STARTS_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: the check's stable name, how grave it is, the object, and what to do about it."""

    check: str
    level: str
    subject: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """Return it with stable keys for JSON."""
        return {"check": self.check, "level": self.level, "subject": self.subject, "text": self.text}


def examine(transaction: Transaction, *, pooled: bool) -> list[Finding]:
    """Look the database over in the open transaction, which nobody else should use afterwards.

    ``pooled`` says that the connection was found to go through a pooler.
    Raises SchemaMismatch when the schema is missing, older or newer: there is nothing to compare with then.
    Safe to re-run: it only reads.
    """
    require_current(transaction)
    namespace = drift.find_namespace(transaction)
    rights = transaction.row("session_rights", namespace=namespace)
    assert rights is not None
    return [
        *_builds(transaction),
        *_server(rights),
        *_rights(rights, transaction.schema),
        *_defaults(transaction.rows("session_defaults")),
        *_pooler(pooled),
        *_references(transaction, namespace),
        *_sessions(transaction, namespace),
        *([] if rights[3] else _jobs(transaction)),
        *(
            Finding("drift", PROBLEM, difference.subject, difference.text)
            for difference in drift.compare(drift.expected(in_force(transaction)), drift.describe(transaction))
        ),
    ]


def _builds(transaction: Transaction) -> Iterator[Finding]:
    for version in unknown_builds(transaction):
        yield Finding(
            "migration",
            PROBLEM,
            f"migration {version}",
            f"migration {version} was applied with other SQL than this pgonce has: the schema is from another build",
        )


def _server(rights: tuple[Any, ...]) -> Iterator[Finding]:
    major, encoding = rights[0] // 10_000, rights[1]
    if major not in MAJORS:
        supported = f"{MAJORS[0]} to {MAJORS[-1]}"
        yield Finding(
            "version", PROBLEM, f"PostgreSQL {major}", f"the server is PostgreSQL {major}; supported are {supported}"
        )
    if encoding != "UTF8":
        yield Finding(
            "encoding",
            PROBLEM,
            f"encoding {encoding}",
            f"the database's encoding is {encoding}: events with characters outside it are refused. Use UTF8",
        )


def _rights(rights: tuple[Any, ...], schema: str) -> Iterator[Finding]:
    _version, _encoding, temporary, unreadable, unwritable = rights
    for right, tables in (("select", unreadable), ("insert", unwritable)):
        for table in tables:
            yield Finding(
                "rights",
                PROBLEM,
                f"table {table}",
                f"the role may not {right} on {schema}.{table}: no job can run as it. Let the role own the schema",
            )
    if not temporary:
        yield Finding(
            "temporary",
            INFO,
            "right TEMP",
            "the role may not make temporary tables: jobs with --effect wait for each other. Grant TEMP on the "
            "database to let them run side by side",
        )


def _defaults(rows: list[tuple[Any, ...]]) -> Iterator[Finding]:
    found = dict(rows)
    for name, bad, level, text in (
        ("row_security", "off", INFO, "queries on tables with row security fail instead of being filtered"),
        ("synchronous_commit", "off", INFO, "pgonce sets it on in each of its transactions; others may lose commits"),
        ("fsync", "off", INFO, "a power cut can corrupt the cluster: for tests only"),
        ("full_page_writes", "off", INFO, "a power cut can corrupt the cluster: for tests only"),
    ):
        if found.get(name) == bad:
            yield Finding("setting", level, f"{name} = {bad}", f"{name} is {bad}: {text}")


def _pooler(pooled: bool) -> Iterator[Finding]:
    if pooled:
        yield Finding(
            "pooler",
            INFO,
            "connection",
            "a pooler serves this connection: whether the owner of a run is gone cannot be seen at its backend, so a "
            f"run that was killed is taken over after {POOLED_SILENCE_S:.0f} s of silence, or at once with --take-over",
        )


def _references(transaction: Transaction, namespace: int | None) -> Iterator[Finding]:
    for table, constraint in transaction.rows("disabled_references", namespace=namespace):
        yield Finding(
            "reference",
            PROBLEM,
            f"constraint {table}.{constraint}",
            f"the triggers of foreign key {constraint} on {table} are disabled, it holds nothing. Run pgonce "
            f"reconcile, then: alter table {table} enable trigger all",
        )


def _sessions(transaction: Transaction, namespace: int | None) -> Iterator[Finding]:
    for gid, owner, prepared, tables in transaction.rows("prepared_transactions", namespace=namespace):
        yield Finding(
            "prepared",
            PROBLEM,
            f"prepared transaction {gid}",
            f"{gid!r} by {owner}, prepared {prepared}, holds locks on {tables} until it is ended by hand: "
            "commit prepared or rollback prepared",
        )
    for pid, user, application, since, age in transaction.rows("idle_transactions", idle_s=IDLE_S):
        horizon = f", {age} transactions behind" if age is not None else ""
        yield Finding(
            "idle",
            PROBLEM,
            f"backend {pid}",
            f"backend {pid} ({user}, {application or 'no name'}) idles in a transaction since {since}{horizon}: "
            "nothing that changed since can be vacuumed. End it, or find out why it waits",
        )


def _jobs(transaction: Transaction) -> Iterator[Finding]:
    silent = {"silent_s": POOLED_SILENCE_S, "most": STARTS_SHOWN_MAX}
    for job, run_id, epoch, owner, name, moved_at in transaction.rows("open_starts", **silent):
        yield Finding(
            "start",
            INFO,
            f"run {run_id}",
            f"start {epoch} of run {run_id} (job {job}, {name}) by {owner} is gone without an end; its last move was "
            f"at {moved_at}. The same command goes on from there",
        )
    for job, number in transaction.rows("used_up_events", job=None):
        yield Finding(
            "used-up",
            INFO,
            f"job {job}",
            f"{number} pending events of job {job} have used up their attempts: no run tries them before "
            "they are granted more (pgonce retry --pending)",
        )
