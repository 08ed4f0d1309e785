"""References that no foreign key declares, known by how two clean runs differ.

A column whose values differ by themselves in two clean runs would be left out. Where in both runs every value of it is
a generated key of another table, and both runs are the same once each value stands for the row that it points to, it is
compared as a reference instead. That never sees less than leaving it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import psycopg
from psycopg import sql

from pgonce.crashtest.catalogue import Catalogue, Column, Reference, Table
from pgonce.crashtest.shape import Shape, relation_of

_INTEGERS = frozenset({"smallint", "integer", "bigint"})


def find(
    runs: tuple[psycopg.Connection, psycopg.Connection],
    catalogue: Catalogue,
    shape: Shape,
    compared: frozenset[str],
    *,
    is_same: Callable[[Shape], bool],
) -> Shape:
    """Return the shape with every column that turns out to be a reference taken from those that are left out.

    ``runs`` are what two clean runs left; ``is_same`` says whether they are the same by another shape.
    """
    for name in sorted(shape.left_out):
        for column in catalogue[name].columns:
            if column.name not in shape.left_out[name]:
                continue
            for reference in _candidates(catalogue[name], column, catalogue, shape, compared):
                tried = _with(shape, name, reference)
                if all(_holds(run, catalogue[name], reference, catalogue) for run in runs) and is_same(tried):
                    shape = tried
                    break
    return shape


def told(shape: Shape) -> tuple[str, ...]:
    """Name the references that were found, for a person."""
    return tuple(
        f"{name}.{reference.columns[0]} = {reference.target}.{reference.target_columns[0]}"
        for name, references in sorted(shape.found.items())
        for reference in references
    )


def _candidates(
    table: Table, column: Column, catalogue: Catalogue, shape: Shape, compared: frozenset[str]
) -> Iterator[Reference]:
    """Yield the keys of other compared tables that a column could hold: made anew at every run, and unique."""
    if any(column.name in reference.columns for reference in table.references):
        return
    for target in catalogue.values():
        if target.name == table.name or target.name not in compared:
            continue
        for key in target.columns:
            if key.is_unique and key.name in shape.masked(target) and _is_alike(column, key):
                yield Reference((column.name,), target.name, (key.name,), is_declared=False)


def _is_alike(column: Column, key: Column) -> bool:
    return column.type == key.type or {column.type, key.type} <= _INTEGERS


def _holds(run: psycopg.Connection, table: Table, reference: Reference, catalogue: Catalogue) -> bool:
    """Say whether every value of the column is a key there."""
    statement = sql.SQL(
        "select not exists (select from only {} as x where x.{} is not null"
        " and not exists (select from only {} as y where y.{} = x.{}))"
    ).format(
        relation_of(table),
        sql.Identifier(reference.columns[0]),
        relation_of(catalogue[reference.target]),
        sql.Identifier(reference.target_columns[0]),
        sql.Identifier(reference.columns[0]),
    )
    row = run.execute(statement).fetchone()
    return bool(row and row[0])


def _with(shape: Shape, name: str, reference: Reference) -> Shape:
    left_out = {**shape.left_out, name: shape.left_out[name] - set(reference.columns)}
    found = {**shape.found, name: (*shape.found.get(name, ()), reference)}
    return dataclasses.replace(shape, left_out=left_out, found=found)
