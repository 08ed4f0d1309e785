"""The relation ``chunk``: the rows to be applied now, as a table that the user's SQL can read.

It is a temporary table that lives as long as the transaction. Where the role may not make temporary tables, it is a
table of pgonce's schema, made and dropped in the transaction: nobody else ever sees it, and jobs that need it at the
same time wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from pgonce.db import failure
from pgonce.db.copying import HEADER, TRAILER
from pgonce.db.statements import quote_identifier
from pgonce.db.transaction import Transaction
from pgonce.errors import ConfigurationError

RELATION = "chunk"

OWN_COLUMNS = (("event_id", "text"), ("source", "text"), ("line", "bigint"), ("amount_cents", "bigint"))

_SQL_TYPES: Mapping[str, str] = {
    "text": "text",
    "int": "bigint",
    "decimal": "numeric",
    "bool": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
    "json": "jsonb",
}


# What PostgreSQL gives every table by itself.
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})

# The server cuts a longer name off, and two columns may become one.
_NAME_BYTES_MAX = 63

# The server's own limit for a table.
_COLUMNS_MAX = 1600


def refuse_columns(columns: Sequence[str]) -> None:
    """Raise ConfigurationError, naming them, for columns of a file that the relation cannot have beside each other.

    Safe to re-run: it only looks.
    """
    if len(columns) + len(OWN_COLUMNS) > _COLUMNS_MAX:
        raise ConfigurationError(
            f"the input has {len(columns)} columns; the relation chunk holds {_COLUMNS_MAX - len(OWN_COLUMNS)}. Hand "
            "in fewer columns, or apply it without --effect"
        )
    names = [name.encode()[:_NAME_BYTES_MAX].decode(errors="ignore") for name in column_names(columns)]
    clashing = [
        column for column, name in zip(columns, names, strict=True) if name in _SYSTEM_COLUMNS or names.count(name) > 1
    ]
    if clashing:
        raise ConfigurationError(
            f"the relation chunk cannot have these columns of the input beside its own and each other: "
            f"{', '.join(map(repr, dict.fromkeys(clashing)))}. Rename them in the input, or apply it without --effect"
        )


def column_names(columns: Sequence[str]) -> list[str]:
    """Name the file's columns in the relation: as they are, with ``file_`` before a name that pgonce's columns have."""
    taken = {name for name, _ in OWN_COLUMNS}
    return [f"file_{name}" if name in taken else name for name in columns]


def create(transaction: Transaction, columns: Sequence[str], types: Mapping[str, str]) -> None:
    """Make the relation in the open transaction, empty."""
    definition = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
        for name, kind in (*OWN_COLUMNS, *_file_columns(columns, types))
    )
    shape = "create temporary table {} ({}) on commit drop" if transaction.may_use_temp else "create table {} ({})"
    transaction.connection.execute(sql.SQL(shape).format(_table(transaction), definition))


def _file_columns(columns: Sequence[str], types: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        (name, _SQL_TYPES[types.get(column, "text")])
        for column, name in zip(columns, column_names(columns), strict=True)
    ]


def _table(transaction: Transaction) -> sql.Identifier:
    """Name the relation so that no search path matters."""
    return sql.Identifier("pg_temp" if transaction.may_use_temp else transaction.schema, RELATION)


def fill(transaction: Transaction, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Copy rows into the relation; each has pgonce's four columns first, then the file's in the order given."""
    with transaction.connection.cursor() as cursor, cursor.copy(_copy(transaction, columns)) as out:
        for row in rows:
            out.write_row(row)


def copy(transaction: Transaction, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
    """Copy rows that are encoded into the relation, in the order of ``fill``, given in pieces of any size."""
    binary = _copy(transaction, columns) + sql.SQL(" (format binary)")
    with transaction.connection.cursor() as cursor, cursor.copy(binary) as out:
        out.write(HEADER)
        for piece in pieces:
            out.write(piece)
        out.write(TRAILER)


def _copy(transaction: Transaction, columns: Sequence[str]) -> sql.Composed:
    names = [name for name, _ in OWN_COLUMNS] + column_names(columns)
    listed = sql.SQL(", ").join(map(sql.Identifier, names))
    return sql.SQL("copy {} ({}) from stdin").format(_table(transaction), listed)


# The sample is 300 rows for each. The default of 100 would read all of a chunk, for more than it costs to fill it.
STATISTICS_TARGET = 3


def analyze(transaction: Transaction) -> None:
    """Tell the planner how many rows there are, so that a large chunk is not joined as if it were empty."""
    transaction.connection.execute(
        sql.SQL(
            "set local default_statistics_target = {}; analyze {}; set local default_statistics_target to default"
        ).format(STATISTICS_TARGET, _table(transaction))
    )


def drop(transaction: Transaction) -> None:
    """Drop the relation before COMMIT: it is nobody's afterwards, temporary or not.

    It is gone already where the user's SQL left temporary relations of its own: the next chunk, or behind a pooler the
    next job, would have found those with these rows in them.
    """
    if not (transaction.dropped_temporary and transaction.may_use_temp):
        transaction.connection.execute(sql.SQL("drop table {}").format(_table(transaction)))


@contextmanager
def users_path(transaction: Transaction) -> Iterator[None]:
    """Resolve names as the user's own sessions do while the user's SQL runs, and as pgonce does after it.

    Raises ConfigurationError if ``chunk`` would be another relation than the one that was made.
    """
    made = _table(transaction).as_string(transaction.connection)
    behind = "" if transaction.may_use_temp else quote_identifier(transaction.schema)
    transaction.row("users_path", behind=behind)
    transaction.runs_user_sql = True
    seen = transaction.row("chunk_seen", made=made)
    if seen is None or not seen[0]:
        raise ConfigurationError(
            f'a relation "chunk" in schema {seen[1] if seen else None} stands before the effect\'s own in the search '
            "path. Rename that relation, take it out of the path, or grant TEMP on the database to the role."
        )
    yield
    transaction.restore_own_path()


def run_user_statement(transaction: Transaction, text: str, line: int, name: str) -> list[tuple[object, ...]]:
    """Run one statement of the user by the extended protocol, which refuses to take several at once.

    The driver's error carries the place in the user's file as a note.
    """
    cursor = transaction.connection.cursor()
    try:
        cursor.execute(text.encode(), binary=True)
        return _rows_shown(cursor) if cursor.description else []
    except Exception as error:
        error.add_note(f"in the statement at line {line} of {name}")
        raise


# A check that returns rows fails whatever their number; a few of them are enough to say why.
ROWS_SHOWN_MAX = 5


def _rows_shown(cursor: psycopg.Cursor) -> list[tuple[object, ...]]:
    """Read a few rows; values that Python has no form for, like an infinite timestamp, are no fault of anybody."""
    try:
        return list(cursor.fetchmany(ROWS_SHOWN_MAX))
    except psycopg.DataError:
        return [(f"{cursor.rowcount} rows, with values that cannot be shown",)]


def same_transaction(transaction: Transaction, before: str) -> None:
    """Make sure that the transaction is still the one that was begun, and that foreign keys hold in it as before."""
    if transaction.connection.info.transaction_status.name != "INTRANS":
        raise failure.ended_inside(transaction.connection.info.transaction_status.name)
    if transaction_id(transaction) != before:
        raise failure.replaced_inside()


def transaction_id(transaction: Transaction) -> str:
    """Name the open transaction, and the replication role that decides whether triggers and foreign keys hold in it."""
    found = transaction.row("transaction_id")
    assert found is not None
    return str(found[0])
