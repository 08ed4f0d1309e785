"""The connection that a program of the user's works with inside a guarded transaction.

It can read and write; it cannot end the transaction, leave it, or change the session that others use after it. A fence
against mistakes, not against malice: whoever wants to reach the driver's connection can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import psycopg

from pgonce.db import failure
from pgonce.db.transaction import Transaction
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

    def execute(self, query: str, params: Parameters = None) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run one statement and return its cursor.

        Raises ConfigurationError for transaction control, settings of the session, and several statements in one
        string; the driver's psycopg.Error for what the server refuses.
        """
        _refuse(query)
        with self._noting(query):
            return self._transaction.connection.execute(query.encode(), params)

    def executemany(self, query: str, rows: Sequence[Parameters]) -> None:
        """Run one statement for each row of parameters. Raises as ``execute`` does."""
        _refuse(query)
        with self._noting(query), self._transaction.connection.cursor() as cursor:
            cursor.executemany(query.encode(), [row or () for row in rows])

    @contextmanager
    def copy(self, query: str, params: Parameters = None) -> Iterator[psycopg.Copy]:
        """Run COPY and yield the driver's object to write rows to or read them from. Raises as ``execute`` does."""
        with (
            self._noting(query),
            self._transaction.connection.cursor() as cursor,
            cursor.copy(query.encode(), params) as copy,
        ):
            yield copy

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

    @contextmanager
    def _noting(self, query: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._transaction.first_failure is None:
                self._transaction.first_failure = f"{_shown(query)}: {_shown(str(error))}"
            raise


@contextmanager
def guarded(transaction: Transaction) -> Iterator[GuardedConnection]:
    """Give a program of the user's the open transaction, under the search path of its own sessions.

    Raises DatabaseFailure if at the end it is not the transaction that it was.
    """
    before = transaction.row("transaction_id")
    transaction.row("users_path", behind="")
    transaction.runs_user_sql = True
    yield GuardedConnection(transaction)
    transaction.refuse_if_failed()
    transaction.row("own_path")
    if transaction.row("transaction_id") != before:
        raise failure.replaced_inside()


def _refuse(query: str) -> None:
    statements = split_statements(query)
    if len(statements) != 1:
        raise ConfigurationError(
            f"{_shown(query)!r} holds {len(statements)} statements; send one at a time, so that none of them can end "
            "the transaction unseen. Nothing was sent."
        )
    refuse_transaction_control(statements)


def _misuse(what: str, instead: str) -> NoReturn:
    raise ConfigurationError(f"{what} cannot be called inside a guarded transaction: {instead}. Nothing was sent.")


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN_CHARACTERS_MAX else flat[: SHOWN_CHARACTERS_MAX - 3] + "..."
