"""How rows are compared: which columns count, and what stands in place of those that cannot.

A generated key says nothing by itself: it is left out, and a reference to it stands for the row that it points to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from psycopg import sql

from pgonce.crashtest.catalogue import Catalogue, Reference, Table

# A reference to a row that itself refers to a row ...: three steps tell rows apart in any schema met so far.
REFERENCE_DEPTH_MAX = 3

# One value for a reference whose chain is longer, or leads back to where it came from; one for what leads nowhere.
_SOME_ROW = sql.SQL("'some row'")
_NO_ROW = sql.SQL("'no such row'")


@dataclass(frozen=True, slots=True)
class Shape:
    """Which columns of which tables are left out because their values differ by themselves.

    ``found`` are references that no foreign key declares.
    """

    left_out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ignored: Mapping[str, frozenset[str]] = field(default_factory=dict)
    found: Mapping[str, tuple[Reference, ...]] = field(default_factory=dict)

    def references(self, table: Table) -> tuple[Reference, ...]:
        """Return the references of a table, declared and found."""
        return table.references + self.found.get(table.name, ())

    def masked(self, table: Table) -> frozenset[str]:
        """Return the columns of a table that are not compared by their values."""
        generated = frozenset(column.name for column in table.columns if column.is_generated)
        return generated | self.left_out.get(table.name, frozenset()) | self.ignored.get(table.name, frozenset())

    def summed(self, table: Table) -> tuple[str, ...]:
        """Return the columns whose sums say whether something was added twice."""
        out = self.masked(table) | {name for reference in self.references(table) for name in reference.columns}
        return tuple(column.name for column in table.columns if column.is_number and column.name not in out)


def row_text(table: Table, catalogue: Catalogue, shape: Shape, *, alias: str = "x", depth: int = 0) -> sql.Composable:
    """Return an expression for the text of a row by which it is compared."""
    masked = shape.masked(table)
    told = {
        name: _pointed_to(table, reference, catalogue, shape, alias=alias, depth=depth)
        for reference in shape.references(table)
        if reference.target in catalogue and _is_masked(reference, catalogue, shape)
        for name in reference.columns
        if name not in shape.ignored.get(table.name, frozenset())
    }
    text: sql.Composable = sql.SQL("to_jsonb({}.*)").format(sql.Identifier(alias))
    out = sorted(masked | told.keys())
    if out:
        text = sql.SQL("({} - {}::text[])").format(text, sql.Literal(out))
    if told:
        pairs = sql.SQL(", ").join(sql.SQL("{}, {}").format(sql.Literal(name), text) for name, text in told.items())
        text = sql.SQL("({} || jsonb_build_object({}))").format(text, pairs)
    return sql.SQL("{}::text").format(text)


def relation_of(table: Table) -> sql.Composable:
    """Return the table as it stands in a FROM clause."""
    return sql.Identifier(table.schema, table.relation)


def _is_masked(reference: Reference, catalogue: Catalogue, shape: Shape) -> bool:
    return not shape.masked(catalogue[reference.target]).isdisjoint(reference.target_columns)


def _pointed_to(
    table: Table, reference: Reference, catalogue: Catalogue, shape: Shape, *, alias: str, depth: int
) -> sql.Composable:
    """Return an expression for the row that a reference points to, null where it points nowhere."""
    target = catalogue[reference.target]
    mine = [sql.Identifier(alias, name) for name in reference.columns]
    nowhere = sql.SQL(" or ").join(sql.SQL("{} is null").format(name) for name in mine)
    if depth >= REFERENCE_DEPTH_MAX or target.name == table.name:
        return sql.SQL("case when {} then null else {} end").format(nowhere, _SOME_ROW)
    inner = f"x{depth + 1}"
    where = sql.SQL(" and ").join(
        sql.SQL("{} = {}").format(sql.Identifier(inner, theirs), name)
        for theirs, name in zip(reference.target_columns, mine, strict=True)
    )
    text = row_text(target, catalogue, shape, alias=inner, depth=depth + 1)
    rows = sql.SQL("select {} as t from {} as {} where {}").format(
        text, relation_of(target), sql.Identifier(inner), where
    )
    if not reference.is_declared:  # nothing keeps the row there, and none but a unique index keeps it single
        rows = sql.SQL("select string_agg(s.t, ' and ' order by s.t) from ({}) as s").format(rows)
    return sql.SQL("case when {} then null else coalesce(({}), {}) end").format(nowhere, rows, _NO_ROW)


def names_of(pairs: Collection[str], catalogue: Catalogue) -> dict[str, frozenset[str]]:
    """Read ``table.column`` names (or whole tables) into the columns of each table; unknown tables are kept as told."""
    found: dict[str, set[str]] = {}
    for pair in pairs:
        if pair in catalogue:
            found.setdefault(pair, set()).update(column.name for column in catalogue[pair].columns)
            continue
        table, _, column = pair.rpartition(".")
        found.setdefault(table.removeprefix("public."), set()).add(column)
    return {table: frozenset(columns) for table, columns in found.items()}
