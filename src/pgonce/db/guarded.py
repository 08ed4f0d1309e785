"""The connection that a program of the user's works with inside a guarded transaction.

It can read and write; it cannot end the transaction, leave it, or change the session that others use after it. A fence
against mistakes, not against malice: whoever wants to reach the driver's connection can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import psycopg

from pgonce.db import failure
from pgonce.db.transaction import Session, Transaction
from pgonce.errors import ConfigurationError
from pgonce.model.sqltext import refuse_transaction_control, split_statements

Parameters = Sequence[Any] | Mapping[str, Any] | None

SHOWN_CHARACTERS_MAX = 120
"""Of a statement that failed; enough to find it in a program."""


class GuardedConnection:
    """Runs statements in the open transaction. An error that is swallowed fails the transaction all the same.

    What it returns are the driver's own cursors (psycopg 3). It is of no use after its block.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._copying = False
        self._is_over = False

    def execute(self, query: str, params: Parameters = None) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run one statement and return its cursor.

        Raises ConfigurationError for transaction control, settings of the session, and several statements in one
        string; the driver's psycopg.Error for what the server refuses.
        """
        self._refuse(query)
        with self._noting(query):
            return self._transaction.connection.execute(query.encode(), params)

    def executemany(self, query: str, rows: Sequence[Parameters]) -> None:
        """Run one statement for each row of parameters. Raises as ``execute`` does."""
        self._refuse(query)
        with self._noting(query), self._transaction.connection.cursor() as cursor:
            cursor.executemany(query.encode(), [row or () for row in rows])

    @contextmanager
    def copy(self, query: str, params: Parameters = None) -> Iterator[GuardedCopy]:
        """Run COPY and yield what rows are written to or read from. Nothing else can be run meanwhile."""
        self._refuse_untimely(query)
        self._copying = True
        try:
            with (
                self._noting(query),
                self._transaction.connection.cursor() as cursor,
                cursor.copy(query.encode(), params) as copy,
            ):
                yield GuardedCopy(copy, lambda: self._noting(query))
        finally:
            self._copying = False

    def commit(self) -> NoReturn:
        """Refuse: the transaction is committed when its block ends."""
        _misuse("commit()", "it is committed when the block ends, and only if nothing in it failed")

    def rollback(self) -> NoReturn:
        """Refuse: the transaction is rolled back when its block raises."""
        _misuse("rollback()", "raise an exception of your own, and it is rolled back whole")

    def transaction(self) -> NoReturn:
        """Refuse: there is one already, and no part of it can be committed or undone alone."""
        _misuse("transaction()", "this block is the transaction")

    def close(self) -> NoReturn:
        """Refuse: the connection is closed by who opened it."""
        _misuse("close()", "the connection is closed by who opened it")

    def end(self) -> None:
        """Let nothing more be run through it: its transaction is over."""
        self._is_over = True

    def _refuse(self, query: str) -> None:
        self._refuse_untimely(query)
        statements = split_statements(query)
        if len(statements) != 1:
            raise ConfigurationError(
                f"{_shown(query)!r} holds {len(statements)} statements; send one at a time, so that none of them can "
                "end the transaction unseen. Nothing was sent."
            )
        refuse_transaction_control(statements)

    def _refuse_untimely(self, query: str) -> None:
        if self._is_over:
            raise ConfigurationError(
                f"{_shown(query)!r} comes after the end of its transaction, and would be committed by itself. Run it "
                "inside the block. Nothing was sent."
            )
        if self._copying:
            raise ConfigurationError(
                f"{_shown(query)!r} comes while a COPY has the connection to itself. End the COPY first."
            )

    @contextmanager
    def _noting(self, query: str) -> Iterator[None]:
        """Keep the first failure, of the server or of the driver: whoever swallows it has not done what was asked."""
        try:
            yield
        except Exception as error:
            if self._transaction.first_failure is None:
                self._transaction.first_failure = f"{_shown(query)}: {_shown(str(error) or type(error).__name__)}"
            raise


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
def guarded(session: Session, transaction: Transaction) -> Iterator[GuardedConnection]:
    """Give a program of the user's the open transaction, under the search path of its own sessions.

    Raises DatabaseFailure if at the end it is not the transaction that it was.
    """
    before = transaction.row("transaction_id")
    transaction.row("users_path", behind="")
    transaction.runs_user_sql = session.was_guarded = True
    connection = GuardedConnection(transaction)
    try:
        yield connection
    finally:
        connection.end()
    transaction.refuse_if_failed()
    transaction.row("own_path")
    if transaction.row("transaction_id") != before:
        raise failure.replaced_inside()


def _misuse(what: str, instead: str) -> NoReturn:
    raise ConfigurationError(f"{what} cannot be called inside a guarded transaction: {instead}. Nothing was sent.")


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN_CHARACTERS_MAX else flat[: SHOWN_CHARACTERS_MAX - 3] + "..."
