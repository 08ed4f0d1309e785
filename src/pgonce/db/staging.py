"""The relation ``chunk``: the rows to be applied now, as a table that the user's SQL can read.

It is a temporary table that lives as long as the transaction. Where the role may not make temporary tables, it is a
table of pgonce's schema, made and dropped in the transaction: nobody else ever sees it, and jobs that need it at the
same time wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from psycopg import sql

from pgonce.db import failure
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


def column_names(columns: Sequence[str]) -> list[str]:
    """Name the file's columns in the relation: as they are, with ``file_`` before a name that pgonce's columns have."""
    taken = {name for name, _ in OWN_COLUMNS}
    return [f"file_{name}" if name in taken else name for name in columns]


def create(transaction: Transaction, columns: Sequence[str], types: Mapping[str, str]) -> None:
    """Make the relation in the open transaction.

    Raises ConfigurationError if a relation of that name would be in its way.
    """
    connection = transaction.connection
    found = connection.execute(
        "select has_database_privilege(current_database(), 'TEMP'), to_regclass('chunk')::text, "
        "current_setting('search_path')"
    ).fetchone()
    assert found is not None
    temporary, existing, path = found
    file_columns = [
        (name, _SQL_TYPES[types.get(column, "text")])
        for column, name in zip(columns, column_names(columns), strict=True)
    ]
    definition = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in (*OWN_COLUMNS, *file_columns)
    )
    if temporary:
        connection.execute(sql.SQL("create temporary table chunk ({}) on commit drop").format(definition))
        return
    if existing is not None:
        raise ConfigurationError(
            f'a relation {existing} stands where the effect\'s relation "chunk" would be, and the role may not make '
            "temporary tables. Rename that relation, or grant TEMP on the database."
        )
    table = sql.Identifier(transaction.schema, RELATION)
    connection.execute(sql.SQL("create table {} ({})").format(table, definition))
    connection.execute(
        "select set_config('search_path', %s, true)",
        (f"{path}, {sql.Identifier(transaction.schema).as_string(connection)}",),
    )


def fill(transaction: Transaction, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Copy rows into the relation; each has pgonce's four columns first, then the file's in the order given."""
    names = [name for name, _ in OWN_COLUMNS] + column_names(columns)
    copy = sql.SQL("copy chunk ({}) from stdin").format(sql.SQL(", ").join(map(sql.Identifier, names)))
    with transaction.connection.cursor() as cursor, cursor.copy(copy) as out:
        for row in rows:
            out.write_row(row)


def analyze(transaction: Transaction) -> None:
    """Tell the planner how many rows there are, so that a large chunk is not joined as if it were empty."""
    transaction.connection.execute("analyze chunk")


def drop(transaction: Transaction) -> None:
    """Drop the relation before COMMIT: it is nobody's afterwards, temporary or not."""
    transaction.connection.execute("drop table chunk")


def run_user_statement(transaction: Transaction, text: str, line: int, name: str) -> list[tuple[object, ...]]:
    """Run one statement of the user by the extended protocol, which refuses to take several at once.

    The driver's error carries the place in the user's file as a note.
    """
    cursor = transaction.connection.cursor()
    try:
        cursor.execute(text.encode(), binary=True)
        return list(cursor.fetchmany(ROWS_SHOWN_MAX)) if cursor.description else []
    except Exception as error:
        error.add_note(f"in the statement at line {line} of {name}")
        raise


# A check that returns rows fails whatever their number; a few of them are enough to say why.
ROWS_SHOWN_MAX = 5


def same_transaction(transaction: Transaction, before: str) -> None:
    """Make sure that the transaction is still the one that was begun; raise a failure if it is not."""
    if transaction.connection.info.transaction_status.name != "INTRANS":
        raise failure.ended_inside(transaction.connection.info.transaction_status.name)
    if transaction_id(transaction) != before:
        raise failure.replaced_inside()


def transaction_id(transaction: Transaction) -> str:
    """Name the open transaction."""
    found = transaction.row("transaction_id")
    assert found is not None
    return str(found[0])
