"""The connection that a program of the user's works with inside a guarded transaction.

It can read and write; it cannot end the transaction, leave it, or change the session that others use after it. A fence
against mistakes, not against malice: whoever wants to reach the driver's connection can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import psycopg
from psycopg.rows import RowFactory, tuple_row

from pgonce.db import failure
from pgonce.db.transaction import Transaction
from pgonce.errors import ConfigurationError
from pgonce.model.sqltext import refuse_transaction_control, split_statements

Parameters = Sequence[Any] | Mapping[str, Any] | None

SHOWN_CHARACTERS_MAX = 120
"""Of a statement that failed; enough to find it in a program."""


class GuardedConnection:
    """Runs statements in the open transaction. An error that is swallowed fails the transaction all the same.

    It is of no use after its block.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._copying = False
        self._is_over = False
        self._lock = threading.RLock()
        self._failures: list[BaseException] = []

    def execute(self, query: str, params: Parameters = None) -> GuardedCursor:
        """Run one statement and return its cursor.

        Raises ConfigurationError for transaction control, settings of the session, and several statements in one
        string; the driver's psycopg.Error for what the server refuses.
        """
        return self.cursor().execute(query, params)

    def executemany(self, query: str, rows: Sequence[Parameters]) -> None:
        """Run one statement for each row of parameters. Raises as ``execute`` does."""
        self.cursor().executemany(query, rows)

    def cursor(self, *, row_factory: RowFactory[Any] | None = None) -> GuardedCursor:
        """Make a cursor; ``row_factory`` is one of psycopg's, such as ``psycopg.rows.dict_row``."""
        self._refuse_late("a cursor")
        made = self._transaction.connection.cursor(row_factory=row_factory or tuple_row)
        return GuardedCursor(self, made)

    @contextmanager
    def copy(self, query: str, params: Parameters = None) -> Iterator[GuardedCopy]:
        """Run COPY and yield what rows are written to or read from. Nothing else can be run meanwhile."""
        self.refuse(query, inline_copy=True)
        self._copying = True
        try:
            with (
                self.noting(query),
                self._transaction.connection.cursor() as cursor,
                cursor.copy(query.encode(), params) as copy,
            ):
                yield GuardedCopy(copy, lambda: self.noting(query))
        finally:
            self._copying = False

    def commit(self) -> NoReturn:
        """Refuse: the transaction is committed when its block ends."""
        self._misuse("commit()", "it is committed when the block ends, and only if nothing in it failed")

    def rollback(self) -> NoReturn:
        """Refuse: the transaction is rolled back when its block raises."""
        self._misuse("rollback()", "raise an exception of your own, and it is rolled back whole")

    def transaction(self) -> NoReturn:
        """Refuse: there is one already, and no part of it can be committed or undone alone."""
        self._misuse("transaction()", "this block is the transaction")

    def close(self) -> NoReturn:
        """Refuse: the connection is closed by who opened it."""
        self._misuse("close()", "the connection is closed by who opened it")

    def end(self) -> None:
        """Let nothing more be run through it: its transaction is over. Waits for another thread's statement."""
        with self._lock:
            self._is_over = True

    def _misuse(self, what: str, instead: str) -> NoReturn:
        with self.noting(what):
            raise ConfigurationError(
                f"{what} cannot be called inside a guarded transaction: {instead}. Nothing was sent, and the "
                "transaction will not be committed."
            )

    def refuse(self, query: str, *, inline_copy: bool = False) -> None:
        """Raise ConfigurationError for a statement that does not belong into the transaction, or comes untimely.

        Who swallows that has not done what was asked, so it fails the transaction as an error of the server does.
        """
        with self.noting(query):
            self._refuse_in_copy(query)
            statements = split_statements(query, inline_copy=inline_copy)
            if len(statements) != 1:
                raise ConfigurationError(
                    f"{_shown(query)!r} holds {len(statements)} statements; send one at a time, so that none of them "
                    "can end the transaction unseen. Nothing was sent."
                )
            refuse_transaction_control(statements)

    def _refuse_late(self, what: str) -> None:
        if self._is_over:
            raise ConfigurationError(
                f"{what} comes after the end of its transaction, and would be committed by itself. Run it inside the "
                "block. Nothing was sent."
            )

    def _refuse_in_copy(self, query: str) -> None:
        if self._copying:
            raise ConfigurationError(
                f"{_shown(query)!r} comes while a COPY has the connection to itself. End the COPY first."
            )

    @contextmanager
    def noting(self, query: str) -> Iterator[None]:
        """Keep the first failure, of the server or of the driver: whoever swallows it has not done what was asked.

        A thread of the user's that comes too late is refused: its statement would be committed by itself.
        """
        with self._lock:
            self._refuse_late(repr(_shown(query)))
            try:
                yield
            except Exception as error:
                self._note(query, error)
                raise

    def raised(self, error: BaseException) -> bool:
        """Say whether a statement that was run here raised this very error."""
        return any(error is known for known in self._failures)

    def _note(self, query: str, error: Exception) -> None:
        first = self._transaction.first_failure
        if not self.raised(error):
            self._failures.append(error)
            if first is None:
                why = _shown(str(error) or type(error).__name__).rstrip(".")
                self._transaction.first_failure = f"{_shown(query)}: {why}"
            else:
                error.add_note(f"(the first statement that failed was {first})")


class GuardedCursor:
    """The result of a statement, and a way to run more: a cursor as psycopg's, which cannot end the transaction."""

    def __init__(self, connection: GuardedConnection, cursor: psycopg.Cursor[Any]) -> None:
        self.connection = connection
        self._cursor = cursor

    def execute(self, query: str, params: Parameters = None) -> GuardedCursor:
        """Run one statement and return this cursor. Raises as the connection's ``execute`` does."""
        self.connection.refuse(query)
        with self.connection.noting(query):
            self._cursor.execute(query.encode(), params)
        return self

    def executemany(self, query: str, rows: Sequence[Parameters]) -> None:
        """Run one statement for each row of parameters. Raises as ``execute`` does."""
        self.connection.refuse(query)
        with self.connection.noting(query):
            self._cursor.executemany(query.encode(), [row or () for row in rows])

    def fetchone(self) -> Any:
        """Return the next row, a tuple unless the cursor was made with another ``row_factory``; None at the end."""
        return self._cursor.fetchone()

    def fetchmany(self, size: int = 0) -> list[Any]:
        """Return the next ``size`` rows."""
        return self._cursor.fetchmany(size)

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    @property
    def rowcount(self) -> int:
        """How many rows the last statement returned or changed."""
        return self._cursor.rowcount

    @property
    def description(self) -> list[psycopg.Column] | None:
        """The columns of the last statement's rows; None if it returns none."""
        return self._cursor.description

    @property
    def statusmessage(self) -> str | None:
        """The command tag that the server answered with."""
        return self._cursor.statusmessage

    def close(self) -> None:
        """Let go of the rows; the transaction goes on. Safe to re-run: yes."""
        self._cursor.close()

    def __enter__(self) -> GuardedCursor:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class GuardedCopy:
    """Rows of a COPY, in or out, as psycopg's Copy has them; a row that fails fails the transaction."""

    def __init__(self, copy: psycopg.Copy, noting: Callable[[], AbstractContextManager[None]]) -> None:
        self._copy = copy
        self._noting = noting

    def write(self, data: bytes | str) -> None:
        """Write data in COPY's format."""
        with self._noting():
            self._copy.write(data)

    def write_row(self, row: Sequence[Any]) -> None:
        """Write a row of Python values."""
        with self._noting():
            self._copy.write_row(row)

    def set_types(self, types: Sequence[int | str]) -> None:
        """Say the types of the columns, by name or number."""
        with self._noting():
            self._copy.set_types(types)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Read the rows of a COPY ... TO STDOUT."""
        with self._noting():
            yield from self._copy.rows()

    def __iter__(self) -> Iterator[bytes]:
        with self._noting():
            for block in self._copy:
                yield bytes(block)


@contextmanager
def guarded(transaction: Transaction) -> Iterator[GuardedConnection]:
    """Give a program of the user's the open transaction, under the search path of its own sessions.

    Raises DatabaseFailure if at the end it is not the transaction that it was.
    """
    before = transaction.row("transaction_id")
    transaction.row("users_path", behind="")
    transaction.runs_user_sql = True
    connection = GuardedConnection(transaction)
    try:
        yield connection
    except psycopg.Error as error:
        transaction.foreign = None if connection.raised(error) else error
        raise
    finally:
        connection.end()
    transaction.refuse_if_failed()
    transaction.restore_own_path()
    if transaction.row("transaction_id") != before:
        raise failure.replaced_inside()


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN_CHARACTERS_MAX else flat[: SHOWN_CHARACTERS_MAX - 3] + "..."
