"""Binary COPY: rows that were encoded before go into a table in one statement.

The server writes them in batches, whose WAL and whose work a row is a third of those of ``insert``. It knows no
``on conflict``: a key that is stored already fails the statement, and the transaction with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import psycopg

from pgonce.db.failure import EVENT_KEY
from pgonce.db.statements import statement
from pgonce.db.transaction import Transaction

NULL = b"\xff\xff\xff\xff"

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_SIZE = struct.Struct(">i")


class KeyTaken(Exception):
    """An event with this key is stored already; the transaction has failed."""


def field(value: bytes) -> bytes:
    """Encode a field: its size, then its bytes. Safe to re-run: a pure function."""
    return _SIZE.pack(len(value)) + value


def copy_rows(transaction: Transaction, name: str, pieces: Iterable[bytes]) -> int:
    """Run a COPY of ``sql/statements`` with encoded rows, given in pieces of any size; return how many were stored.

    Raises KeyTaken for an event's key, known by its name and schema. An effect's is no such case: an effect where no
    event was is a broken promise, and said as such.
    Safe to re-run: in another transaction only, this one has failed then.
    """
    try:
        with transaction.connection.cursor() as cursor:
            with cursor.copy(statement(name, transaction.schema)) as copy:
                copy.write(HEADER)
                for piece in pieces:
                    copy.write(piece)
                copy.write(TRAILER)
            return cursor.rowcount
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name == EVENT_KEY and error.diag.schema_name == transaction.schema:
            raise KeyTaken from error
        raise
