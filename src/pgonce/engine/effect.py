"""The user's effect: SQL that runs once a chunk, in the checkpoint's transaction, over the events to be applied now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pgonce.db import failure, staging
from pgonce.db.transaction import Transaction
from pgonce.engine.batch import ColumnBatch
from pgonce.errors import ConfigurationError
from pgonce.model.canonical import canonical_json, declared
from pgonce.model.row import Row
from pgonce.model.sqltext import Statement, refuse_transaction_control, split_statements

RECORD = "record"
"""The column of ``chunk`` that holds a whole record as JSON, where its fields are an open set."""


@dataclass(frozen=True, slots=True)
class Script:
    """SQL of the user: its statements, the name of its file, and the hash it is guarded by."""

    name: str
    statements: tuple[Statement, ...]
    sha256: str

    @classmethod
    def read(cls, name: str, text: str) -> Script:
        """Split a script and refuse transaction control. Raises ConfigurationError naming the line."""
        statements = split_statements(text)
        if not statements:
            raise ConfigurationError(f"{name} holds no statement")
        refuse_transaction_control(statements)
        return cls(name, statements, hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What is done to the user's own tables: ``script`` for the rows of a chunk, then ``verify``, which must find
    nothing.

    ``columns`` are the file's columns in the relation ``chunk``, with their declared ``types``. ``record`` adds a
    column of that name with the whole record as JSON, for inputs whose fields are an open set.
    """

    script: Script
    verify: Script | None
    columns: tuple[str, ...]
    types: Mapping[str, str]
    record: bool = False

    def begin(self, transaction: Transaction) -> None:
        """Make the relation ``chunk``, empty, in the open transaction."""
        staging.create(transaction, self._columns, self._types)

    def add(self, transaction: Transaction, rows: Sequence[Row] | ColumnBatch) -> None:
        """Put rows into the relation ``chunk``."""
        if isinstance(rows, Sequence):
            staging.fill(transaction, self._columns, self._values(rows))
        else:
            staging.copy(transaction, self._columns, rows.staged(self.columns))

    @property
    def takes_columns(self) -> bool:
        """Say whether rows may come as columns: the file's fields as the texts that they are there."""
        return not self.record and all(kind == "text" for kind in self.types.values())

    def ready(self, transaction: Transaction) -> None:
        """Have the planner know what the relation holds."""
        staging.analyze(transaction)

    def finish(self, transaction: Transaction) -> None:
        """Run the scripts over what the relation holds, and make sure that the transaction is still the same.

        Safe to re-run: it is part of the chunk's transaction, and only sees rows that are applied in it.
        """
        before = staging.transaction_id(transaction)
        with staging.users_path(transaction):
            for statement in self.script.statements:
                staging.run_user_statement(transaction, statement.text, statement.line, self.script.name)
            if self.verify is not None:
                self._check(transaction, self.verify)
        staging.same_transaction(transaction, before)
        staging.drop(transaction)

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*self.columns, RECORD) if self.record else self.columns

    @property
    def _types(self) -> dict[str, str]:
        return {**self.types, RECORD: "json"} if self.record else dict(self.types)

    def _values(self, rows: Sequence[Row]) -> Iterator[tuple[object, ...]]:
        columns = [(name, self.types.get(name, "text")) for name in self.columns]
        for row in rows:
            own, fields = (row.event_id, row.source, row.line, row.amount_cents), row.fields
            # The fields of a CSV file are texts that are declared to be texts, nearly all of them.
            values = [
                value
                if kind == "text" and type(value := fields.get(name)) is str
                else _text(fields.get(name), kind, name)
                for name, kind in columns
            ]
            yield (*own, *values, canonical_json(dict(row.fields))) if self.record else (*own, *values)

    @staticmethod
    def _check(transaction: Transaction, verify: Script) -> None:
        for statement in verify.statements:
            found = staging.run_user_statement(transaction, statement.text, statement.line, verify.name)
            if found:
                shown = "; ".join(", ".join(str(value) for value in row) for row in found)
                raise failure.refused_by_check(
                    f"the check at line {statement.line} of {verify.name} returned rows: {shown[:300]}"
                )


def _text(value: object, kind: str, column: str) -> str | None:
    """Write a field for COPY: by its declared type, JSON scalars as their text, objects and arrays as JSON.

    Floats and binary values, which only Parquet has and only columns outside of the payload may hold, are written as
    PostgreSQL reads them.
    A timestamp without an offset is taken as UTC: what a row means must not depend on a session's time zone.
    """
    if kind != "text":
        value = declared(value, kind, column)
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind == "timestamp" and isinstance(value, str):
        return value if value.endswith("Z") else f"{value}Z"
    if isinstance(value, str) and kind != "json":
        return value
    if isinstance(value, int | Decimal) and kind != "json":
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"
    return canonical_json(value, field=column)
