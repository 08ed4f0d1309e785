"""The calls behind ``pgonce db``: make and migrate the schema, look a database over, keep the embedded server up."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pgonce import server
from pgonce.api.database import opened, target
from pgonce.db import reference as references
from pgonce.db import schema as schemas
from pgonce.db.connect import without_password
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.db.transaction import Transaction
from pgonce.engine.doctor import PROBLEM, Finding, examine
from pgonce.errors import ConfigurationError, SchemaMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """What ``init`` or ``migrate`` found and made: the versions before and after, and what this call applied.

    ``reference`` is how effects refer to their events now: ``set`` or ``row``.
    """

    database: str
    schema: str
    before: int
    after: int
    applied: tuple[str, ...]
    reference: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return it with stable keys for JSON."""
        return {
            "database": self.database,
            "schema": self.schema,
            "before": self.before,
            "after": self.after,
            "applied": list(self.applied),
            "reference": self.reference,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What ``doctor`` found in a database; ``clean`` is said if nothing has to be put right."""

    database: str
    schema: str
    server_version: str
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Say whether nothing has to be put right."""
        return not any(finding.level == PROBLEM for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 if clean, 3 if something has to be put right."""
        return 0 if self.clean else 3

    def as_dict(self) -> dict[str, Any]:
        """Return it with stable keys for JSON."""
        return {
            "database": self.database,
            "schema": self.schema,
            "server_version": self.server_version,
            "clean": self.clean,
            "findings": [finding.as_dict() for finding in self.findings],
            "exit_code": self.exit_code,
        }


def init(
    dsn: str | None = None,
    *,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    reference: str | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> SchemaChange:
    """Make pgonce's schema in a database; where it is there and current, nothing is done.

    ``reference`` is how effects refer to their events: ``set``, a check of all rows of a statement (the default), or
    ``row``, a foreign key. Raises SchemaMismatch for a schema of another version, ConfigurationError when the role may
    not make it, or when it is there with the other reference.
    Safe to re-run: yes, also by several at once.
    """

    def check(transaction: Transaction, before: int) -> None:
        if 0 < before < schemas.newest():
            raise SchemaMismatch(
                f"the schema {schema!r} is there at version {before}, this pgonce needs {schemas.newest()}: run "
                "pgonce db migrate"
            )
        there = references.in_force(transaction) if before else None
        if before and reference not in (None, there):
            raise ConfigurationError(
                f"the schema {schema!r} is there with --reference {there}: to change that, run "
                f"pgonce db migrate --reference {reference}"
            )

    return _change(check, dsn, embedded=embedded, schema=schema, reference=reference, tell=tell)


def migrate(
    dsn: str | None = None,
    *,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    reference: str | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> SchemaChange:
    """Bring an existing schema up to the version of this pgonce, in one transaction.

    ``reference`` puts ``set`` or ``row`` in the place of how effects refer to their events now; the tables are locked
    while that is done.
    Raises SchemaMismatch when there is none, when it is newer, or when applied migrations were edited.
    Safe to re-run: yes, also by several at once.
    """

    def check(_transaction: Transaction, before: int) -> None:
        if before == 0:
            raise SchemaMismatch(
                f"the database has no schema {schema!r} of pgonce to bring up to date: run pgonce db init first"
            )

    return _change(check, dsn, embedded=embedded, schema=schema, reference=reference, tell=tell)


def _change(
    check: Callable[[Transaction, int], None],
    dsn: str | None,
    *,
    embedded: bool,
    schema: str,
    reference: str | None,
    tell: Callable[[str], None],
) -> SchemaChange:
    def body(transaction: Transaction) -> tuple[int, list[schemas.Migration]]:
        schemas.lock(transaction)
        before = schemas.version(transaction)
        check(transaction, before)
        made = schemas.migrate(transaction)
        if reference is not None:
            references.switch(transaction, reference)
        return before, made

    if reference is not None:
        references.check_kind(reference)

    with opened(dsn, embedded=embedded, schema=schema, application="pgonce/db", prepare=False, tell=tell) as clerk:
        before, made = clerk.do(body)
        return SchemaChange(
            database=clerk.session.target.label,
            schema=schema,
            before=before,
            after=clerk.do(schemas.version, commit=False),
            applied=tuple(f"{migration.version:04} {migration.name}" for migration in made),
            reference=clerk.do(references.in_force, commit=False),
        )


def install_sql(schema: str = DEFAULT_SCHEMA, *, since: int = 0, reference: str = references.SET) -> str:
    """Return the SQL that makes the schema, for Alembic, Django or psql; run it in one transaction.

    ``since`` leaves out the migrations up to that version. ``reference`` ``row`` adds the SQL that makes a foreign key
    of the reference from effects to events. Raises ConfigurationError for a name that cannot be used.
    Safe to re-run: it only reads; the SQL itself fails as a whole where the schema is there already.
    """
    references.check_kind(reference)
    migrations = schemas.sql_text(schema, since=since)
    return migrations if reference == references.SET else migrations + references.text(reference, schema)


def doctor(
    dsn: str | None = None,
    *,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    tell: Callable[[str], None] = lambda _text: None,
) -> Diagnosis:
    """Compare the schema with what the migrations make, and look for what endangers or delays jobs.

    Raises SchemaMismatch when the schema is missing, older or newer.
    Safe to re-run: it only reads.
    """
    with opened(dsn, embedded=embedded, schema=schema, application="pgonce/db", prepare=False, tell=tell) as clerk:
        session = clerk.session

        def body(transaction: Transaction) -> tuple[list[Finding], str]:
            version = transaction.connection.info.parameter_status("server_version") or "unknown"
            return examine(transaction, pooled=session.backend_pid is None), version

        findings, version = clerk.do(body, commit=False)
        return Diagnosis(database=session.target.label, schema=schema, server_version=version, findings=tuple(findings))


def up() -> server.Server:
    """Start the embedded server, keep it up until ``down``, and make the default schema in it.

    Safe to re-run: a server that is up stays up.
    """
    pinned = server.pin()
    with opened(embedded=True):
        return pinned


def down(*, now: bool = False) -> tuple[str, ...]:
    """Let the embedded server stop; return the users that keep it up ("pid command"), none if it has stopped.

    ``now`` stops it under them: what they have committed stays. Safe to re-run: yes.
    """
    users = server.unpin(now=now)
    return () if now else users


def psql(
    arguments: Sequence[str],
    dsn: str | None = None,
    *,
    embedded: bool = False,
    tell: Callable[[str], None] = lambda _text: None,
) -> int:
    """Run psql on the chosen database with these arguments; return its exit code.

    A password in the dsn goes to psql by its environment, never by its arguments.
    Raises ConfigurationError when no psql is found.
    """
    with target(dsn, embedded=embedded) as (chosen, _is_embedded):
        tell(f"using the {chosen.label} (named by {chosen.named_by})")
        program = server.find_binaries().program("psql")
        if not program.is_file():
            raise ConfigurationError(f"there is no psql beside the PostgreSQL in {program.parent}; install it")
        conninfo, password = without_password(chosen.conninfo)
        environment = {**os.environ, **({"PGPASSWORD": password} if password is not None else {})}
        argv = [str(program), *(["-d", conninfo] if conninfo else []), *arguments]
        # Ctrl-C is psql's own business: it cancels a query there, and does not end us under it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = subprocess.run(
                argv, env=environment, check=False, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
            ).returncode
        finally:
            signal.signal(signal.SIGINT, before)
        return code if code >= 0 else 128 - code
