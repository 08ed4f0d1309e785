"""An open transaction, in which statements are run by name and SQL of the user leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from pgonce.db import failure
from pgonce.db.statements import statement

Row = tuple[Any, ...]


class Transaction:
    """An open transaction. Statements are run by the name of their file, or, for what the user wrote, by their text."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self.may_use_temp = False
        """Whether the role may make temporary tables; known once the transaction is bounded."""
        self.runs_user_sql = False
        """Whether SQL of the user ran in it, which may have deferred something to COMMIT or left it on the session."""
        self.first_failure: str | None = None
        """The first statement of the user that failed, and why; it may have been swallowed."""
        self.dropped_temporary = False
        """Whether SQL of the user left temporary relations: then all are gone, pgonce's own among them."""
        self.foreign: BaseException | None = None
        """An error of the driver that the user's program raised, but no statement in this transaction."""

    @property
    def connection(self) -> psycopg.Connection:
        """The driver's connection, for what has no statement file: COPY, and statements with names made at run time."""
        return self._connection

    @property
    def schema(self) -> str:
        """The schema that pgonce's tables are in."""
        return self._schema

    def rows(self, name: str, /, **parameters: object) -> list[Row]:
        """Run a statement of ``sql/statements`` and return its rows."""
        cursor = self._connection.execute(statement(name, self._schema), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def row(self, name: str, /, **parameters: object) -> Row | None:
        """Run a statement of ``sql/statements`` and return its first row, or None."""
        found = self.rows(name, **parameters)
        return found[0] if found else None

    def holds_up(self, *, but: Sequence[int]) -> bool:
        """Say whether anybody but these backends waits for this transaction; yes, if the connection cannot tell."""
        try:
            found = self.row("holds_up", but=list(but))
        except psycopg.Error:
            return True
        return found is None or bool(found[0])

    def refuse_if_failed(self) -> None:
        """Raise DatabaseFailure unless the transaction is open and nothing in it failed."""
        status = self._connection.info.transaction_status
        if status is TransactionStatus.INERROR or self.first_failure is not None:
            raise failure.swallowed(self.first_failure)
        if status is not TransactionStatus.INTRANS:
            raise failure.ended_inside(status.name)

    def restore_own_path(self) -> None:
        """Resolve names in the catalogue alone again, after SQL of the user; drop what temporary relations it left."""
        found = self.row("own_path")
        self.dropped_temporary = bool(found and found[0])
        if self.dropped_temporary:
            self._connection.execute("discard temporary")

    def before_commit(self) -> None:
        """Resolve names at COMMIT as the user's own sessions do, if SQL of the user may have deferred something."""
        if self.runs_user_sql:
            self.row("users_path", behind="")

    def each(self, name: str, /, *, batch: int, **parameters: object) -> Iterator[Row]:
        """Run a query through a server-side cursor: any number of rows in constant memory."""
        with self._connection.cursor(name="pgonce_each") as cursor:
            cursor.itersize = batch
            cursor.execute(statement(name, self._schema), parameters or None)
            yield from cursor
