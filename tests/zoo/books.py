"""The oracle: what stands in a database, and the verdict on it beside a clean run's, in plain SQL and arithmetic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from zoo.catalogue import Program, worst

Row = tuple[Any, ...]

# Enough to tell which row it is.
ROW_CHARACTERS_SHOWN = 120

_TABLES = """
select format('%s.%s', n.nspname, c.relname),
    array(select a.attname::text from pg_attribute as a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
    array(select a.attname::text from pg_index as i
        join pg_attribute as a on a.attrelid = c.oid and a.attnum = any (i.indkey)
        where i.indrelid = c.oid and i.indisprimary order by a.attnum)
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_t'
order by 1
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table's rows without what varies, and the positions of its key in them (empty: no key that is compared)."""

    rows: Counter[Row]
    key: tuple[int, ...]


State = dict[str, Table]


def look(connection: psycopg.Connection, program: Program) -> State:
    """Read all tables that are compared."""
    state = {}
    for name, columns, key in connection.execute(_TABLES).fetchall():
        short = name.removeprefix("public.")
        if short in program.log_tables:
            continue
        kept = [column for column in columns if f"{short}.{column}" not in program.varies | program.ignore]
        whole = set(key) <= set(kept)
        listed = sql.SQL(", ").join(map(sql.Identifier, kept))
        query = sql.SQL("select {} from {}").format(listed, sql.Identifier(*name.split(".")))
        rows = Counter(_plain(row) for row in connection.execute(query))
        state[short] = Table(rows, tuple(kept.index(column) for column in key) if whole else ())
    return state


def _plain(row: Row) -> Row:
    return tuple(value if isinstance(value, (int, Decimal, str, type(None))) else repr(value) for value in row)


def verdict(base: State, clean: State, found: State) -> str:
    """Compare an end with that of a clean run from the same base.

    DOUBLED: more rows, or a number moved further in the direction in which a clean run moves it. LOST: fewer rows, or a
    number that is still as in the base. CHANGED: any other difference.
    """
    if base.keys() != found.keys() or clean.keys() != found.keys():
        return "CHANGED"
    return worst([_of_table(base[name], clean[name], found[name]) for name in clean])


def _of_table(base: Table, clean: Table, found: Table) -> str:
    extra, missing = found.rows - clean.rows, clean.rows - found.rows
    if not extra and not missing:
        return "SAFE"
    if extra.total() != missing.total():
        return "DOUBLED" if extra.total() > missing.total() else "LOST"
    if not found.key:
        return "CHANGED"
    was, should = _by_key(base), _by_key(clean)
    judged = [_of_row(was.get(key), should.get(key), row) for key, row in _by_key(found).items() if row in extra]
    return worst(judged)


def _by_key(table: Table) -> dict[Row, Row]:
    return {tuple(row[position] for position in table.key): row for row in table.rows}


def _of_row(was: Row | None, should: Row | None, found: Row) -> str:
    if was is None or should is None:
        return "CHANGED"
    verdicts = []
    for before, right, now in zip(was, should, found, strict=True):
        if right == now:
            continue
        is_number = all(isinstance(value, (int, Decimal)) for value in (before, right, now))
        if is_number and (now - right) * (right - before) > 0:
            verdicts.append("DOUBLED")
        else:
            verdicts.append("LOST" if is_number and now == before else "CHANGED")
    return worst(verdicts)


def describe(clean: State, found: State) -> str:
    """List the rows that are too many (+) and that are missing (-), shortened."""
    lines = []
    for name in clean.keys() | found.keys():
        should, have = (state[name].rows if name in state else Counter() for state in (clean, found))
        lines += [f"+{name}{row}"[:ROW_CHARACTERS_SHOWN] for row in (have - should).elements()]
        lines += [f"-{name}{row}"[:ROW_CHARACTERS_SHOWN] for row in (should - have).elements()]
    return " ".join(lines)
