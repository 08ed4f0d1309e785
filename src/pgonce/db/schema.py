"""The schema of pgonce in a database: its numbered migrations, and whether it is at the one this code needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import psycopg

from pgonce.db.statements import qualify, quote_identifier
from pgonce.db.transaction import Transaction
from pgonce.errors import ConfigurationError, SchemaMismatch

SCHEMA_NAME_BYTES_MAX = 63


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema: its number, its name, and the SQL for the default schema name."""

    version: int
    name: str
    text: str

    @property
    def sha256(self) -> str:
        """The hash of its SQL, kept in the database to tell whether an applied migration was edited afterwards."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Read every migration of this version of pgonce, in order."""
    found = []
    for entry in sorted(files("pgonce.sql").joinpath("migrations").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, entry.read_text(encoding="utf-8")))
    return tuple(found)


def check_schema_name(schema: str) -> None:
    """Refuse a schema name that PostgreSQL would cut off or keep for itself. Raises ConfigurationError."""
    if not schema or len(schema.encode()) > SCHEMA_NAME_BYTES_MAX or schema.startswith("pg_") or "\0" in schema:
        raise ConfigurationError(
            f"{schema!r} cannot be a schema name: it has 1 to {SCHEMA_NAME_BYTES_MAX} bytes and may not begin with pg_"
        )


def applied(transaction: Transaction) -> dict[int, str]:
    """Return the applied migrations, version to hash; empty when the schema is not there."""
    name = f"{quote_identifier(transaction.schema)}.migration"
    found = transaction.connection.execute("select to_regclass(%s)::text", (name,)).fetchone()
    if found is None or found[0] is None:
        return {}
    return dict(transaction.rows("read_migrations"))


def newest() -> int:
    """Return the version that this code needs."""
    return migrations()[-1].version


def version(transaction: Transaction) -> int:
    """Return the schema's version, 0 if the schema is not there."""
    return max(applied(transaction), default=0)


def lock(transaction: Transaction) -> None:
    """Let one session at a time change the schema, from here until the transaction ends; it may be taken again."""
    transaction.row("lock_migrations", schema=transaction.schema)


def require_current(transaction: Transaction) -> None:
    """Make sure that the database has the schema this code needs.

    Raises SchemaMismatch when it is missing, older or newer. Safe to re-run: it only reads.
    """
    wanted, there = newest(), version(transaction)
    if there == 0:
        raise SchemaMismatch(
            f"the database has no schema {transaction.schema!r} of pgonce. Nothing is made by surprise: run "
            "pgonce db init first (the embedded server does it by itself)"
        )
    if there < wanted:
        raise SchemaMismatch(f"the schema is at version {there}, this pgonce needs {wanted}: run pgonce db migrate")
    if there > wanted:
        raise SchemaMismatch(
            f"the schema is at version {there}, newer than this pgonce knows ({wanted}): update pgonce"
        )


def unknown_builds(transaction: Transaction) -> list[int]:
    """Name the applied migrations whose SQL is not the one this code has, or that it has not at all."""
    known = {migration.version: migration.sha256 for migration in migrations()}
    return [number for number, sha256 in sorted(applied(transaction).items()) if known.get(number) != sha256]


def migrate(transaction: Transaction) -> list[Migration]:
    """Bring the schema up to date in the open transaction; returns the migrations that were applied by it.

    One session at a time does this; others wait and then find it done. Raises SchemaMismatch for a schema that is newer
    than this code or whose applied migrations were edited.
    Safe to re-run: yes; what is applied is left alone.
    """
    check_schema_name(transaction.schema)
    lock(transaction)
    there = applied(transaction)
    if max(there, default=0) > newest():
        require_current(transaction)
    edited = unknown_builds(transaction)
    if edited:
        raise SchemaMismatch(
            f"migration {edited[0]} was applied with other SQL than this pgonce has; it is from another build. Use "
            "that build, or start in a fresh schema"
        )
    todo = [migration for migration in migrations() if migration.version not in there]
    if not there:
        _make_schema(transaction)
    for migration in todo:
        transaction.connection.execute(qualify(migration.text, transaction.schema).encode())
        transaction.rows("insert_migration", version=migration.version, name=migration.name, sha256=migration.sha256)
    return todo


def _make_schema(transaction: Transaction) -> None:
    connection, schema = transaction.connection, transaction.schema
    found = connection.execute("select 1 from pg_catalog.pg_namespace where nspname = %s", (schema,)).fetchone()
    if found is not None:
        return
    try:
        connection.execute(f"create schema {quote_identifier(schema)}".encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"the role may not create the schema {schema!r}. Have it made once by its owner: "
            f"create schema {quote_identifier(schema)} authorization ROLE"
        ) from error


def sql_text(schema: str, *, since: int = 0) -> str:
    """Return the SQL of the migrations after version ``since``, for those who apply it by their own means.

    It is meant for one transaction (``psql -1``, or a migration of Alembic or Django), and records what it applies, so
    that ``migrate`` finds it done. Raises ConfigurationError for a version that this code does not have.
    """
    check_schema_name(schema)
    if not 0 <= since <= newest():
        raise ConfigurationError(f"there is no schema version {since}; this pgonce has versions up to {newest()}")
    parts = []
    if since == 0:
        block = _FIRST.format(literal=_literal(schema), name=quote_identifier(schema))
        parts.append(f"do {_literal(block)};\n")
    for migration in migrations():
        if migration.version > since:
            values = {"name": _literal(migration.name), "sha256": _literal(migration.sha256)}
            record = _RECORD.format(version=migration.version, **values)
            parts += [qualify(migration.text, schema), qualify(record, schema)]
    return "\n".join(parts)


_RECORD = "insert into pgonce.migration (version, name, sha256) values ({version}, {name}, {sha256});\n"

# `create schema if not exists` wants the right to create one even where it exists.
_FIRST = """\
begin
    if not exists (select 1 from pg_catalog.pg_namespace where nspname = {literal}) then
        create schema {name};
    end if;
end"""


def _literal(text: str) -> str:
    """Quote a text so that SQL takes it literally, whatever `standard_conforming_strings` says."""
    doubled = text.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in text else f"'{doubled}'"
