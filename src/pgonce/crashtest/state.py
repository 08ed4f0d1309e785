"""The state of a database in a few numbers, and where two states differ. Hashed in the server, rows without order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import psycopg
from psycopg import sql

from pgonce.crashtest.catalogue import Catalogue, Table, read_catalogue, read_schema
from pgonce.crashtest.shape import Shape, relation_of, row_text
from pgonce.crashtest.verdict import Row

# Rows are sorted into this many slices by their hash, and only slices that differ are looked at row by row.
SLICES = 256

# Rows fetched of the slices that differ; beyond it the difference is shown in part and counted in whole.
ROWS_FETCHED_MAX = 20_000

# Rows kept of one table at one point: enough to see a pattern, small in a report with hundreds of points.
ROWS_KEPT_MAX = 40


@dataclass(frozen=True, slots=True)
class TableState:
    """Rows, their hash without order, and the sums of the columns that can be summed."""

    rows: int
    digest: str
    sums: Mapping[str, Decimal]

    @property
    def mark(self) -> tuple[int, str]:
        """Return what is equal if and only if the rows are."""
        return (self.rows, self.digest)


@dataclass(frozen=True, slots=True)
class State:
    """Everything that is compared of one database at one moment."""

    catalogue: Catalogue
    schema: Mapping[str, str]
    tables: Mapping[str, TableState]


def read_state(connection: psycopg.Connection, shape: Shape, *, only: frozenset[str] | None = None) -> State:
    """Read the state of a database; ``only`` limits it to these tables."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read read only")
        connection.execute("set local timezone = 'UTC'")
        connection.execute("set local search_path = pg_catalog")
        catalogue = read_catalogue(connection)
        compared = {name: table for name, table in catalogue.items() if only is None or name in only}
        found = dict(_states(connection, compared, catalogue, shape))
        return State(catalogue, read_schema(connection), found)


def _states(
    connection: psycopg.Connection, compared: Catalogue, catalogue: Catalogue, shape: Shape
) -> Iterator[tuple[str, TableState]]:
    parts = [_digest_sql(table, catalogue, shape) for table in compared.values()]
    for begin in range(0, len(parts), 50):
        rows = connection.execute(sql.SQL(" union all ").join(parts[begin : begin + 50])).fetchall()
        for name, count, digest, sums in rows:
            values = {column: Decimal(value) for column, value in (sums or {}).items() if value is not None}
            yield name, TableState(count, str(digest), values)


def _digest_sql(table: Table, catalogue: Catalogue, shape: Shape) -> sql.Composable:
    summed = shape.summed(table)
    pairs = sql.SQL(", ").join(
        sql.SQL("{}, sum(x.{}::numeric)::text").format(sql.Literal(name), sql.Identifier(name)) for name in summed[:40]
    )
    return sql.SQL(
        "select {}, count(*), coalesce(sum(hashtextextended({}, 0)::numeric), 0)::text, jsonb_build_object({})"
        " from only {} as x"
    ).format(sql.Literal(table.name), row_text(table, catalogue, shape), pairs, relation_of(table))


def column_digests(connection: psycopg.Connection, table: Table) -> dict[str, str]:
    """Hash each column of a table by itself, values without order: what differs here differs by itself."""
    columns = sql.SQL(", ").join(
        sql.SQL("coalesce(sum(hashtextextended(coalesce(x.{}::text, ''), 0)::numeric), 0)::text").format(
            sql.Identifier(column.name)
        )
        for column in table.columns
    )
    if not table.columns:
        return {}
    row = connection.execute(sql.SQL("select {} from only {} as x").format(columns, relation_of(table))).fetchone()
    assert row is not None, "an aggregate gives a row"
    return {column.name: str(value) for column, value in zip(table.columns, row, strict=True)}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the databases that are compared: a connection to it and its tables."""

    connection: psycopg.Connection
    catalogue: Catalogue


def differing_rows(before: Side, clean: Side, now: Side, *, table: str, shape: Shape) -> tuple[Row, ...]:
    """Return the rows of a table of which there are more or fewer now than after a clean run, at most some."""
    slices = [_slices(side, table, shape) for side in (clean, now)]
    numbers = slices[0].keys() | slices[1].keys()
    differing = sorted(number for number in numbers if slices[0].get(number) != slices[1].get(number))
    earlier, expected, found = (_rows(side, table, shape, differing) for side in (before, clean, now))
    texts = sorted(text for text in expected.keys() | found.keys() if expected.get(text, 0) != found.get(text, 0))
    return tuple(
        Row(text, earlier.get(text, 0), expected.get(text, 0), found.get(text, 0)) for text in texts[:ROWS_KEPT_MAX]
    )


def _slices(side: Side, table: str, shape: Shape) -> dict[int, tuple[int, str]]:
    if table not in side.catalogue:
        return {}
    found = side.catalogue[table]
    statement = sql.SQL(
        "select h & {}, count(*), sum(h::numeric)::text"
        " from (select hashtextextended({}, 0) as h from only {} as x) as s group by 1"
    ).format(sql.Literal(SLICES - 1), row_text(found, side.catalogue, shape), relation_of(found))
    return {number: (count, digest) for number, count, digest in side.connection.execute(statement)}


def _rows(side: Side, table: str, shape: Shape, slices: Sequence[int]) -> dict[str, int]:
    if table not in side.catalogue or not slices:
        return {}
    found = side.catalogue[table]
    statement = sql.SQL(
        "select t, count(*) from (select {} as t from only {} as x) as s"
        " where (hashtextextended(t, 0) & {}) = any(%s) group by t order by t limit {}"
    ).format(
        row_text(found, side.catalogue, shape),
        relation_of(found),
        sql.Literal(SLICES - 1),
        sql.Literal(ROWS_FETCHED_MAX),
    )
    return dict(side.connection.execute(statement, (list(slices),)).fetchall())
