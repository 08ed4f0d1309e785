"""Chunks of columns: sifted without a row being made, and read again row by row where anything is not plain."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from database.jobs import Desk, Watching, make_order
from database.test_fast_path import rows_of, statements_of
from pgonce.engine.columnar import BlockColumns

CHUNK = 600

HALF = CHUNK // 2

UPDATE = "update pgonce.event set {} where event_id = '000310'"

CHANGES: dict[str, tuple[list[tuple[object, ...]], str, tuple[int, int, int]]] = {
    "nothing": ([], "select 1", (HALF, HALF, 0)),
    "another payload": ([], UPDATE.format("payload = '[\"m\"]'"), (HALF, HALF - 1, 1)),
    "another amount": ([], UPDATE.format("amount_cents = 4"), (HALF, HALF - 1, 1)),
    "pending": ([], UPDATE.format("status = 'pending'"), (HALF + 1, HALF - 1, 0)),
    "twice in the chunk": ([("000899", 3, "n")], "select 1", (HALF, HALF + 1, 0)),
    "below zero": ([("000900", -3, "n")], "select 1", (HALF, HALF, 0)),
}


@pytest.mark.parametrize(("more", "change", "expected"), CHANGES.values(), ids=CHANGES)
def test_half_new_and_half_replayed_is_sifted_and_what_is_odd_is_looked_at(
    desk: Desk, more: list[Any], change: str, expected: tuple[int, int, int]
) -> None:
    """I2, I3, I4: applied, already and conflict are what the rows one by one would come to."""
    desk.run(desk.csv(rows_of(range(CHUNK))), order=make_order(chunk_rows=2 * CHUNK))
    desk.sql("alter table pgonce.event disable trigger user; alter table pgonce.effect disable trigger effect_keep")
    desk.sql(change)
    if "pending" in change:
        desk.sql("delete from pgonce.effect where event_id = '000310'")
    path, watching = desk.csv([*rows_of(range(HALF, CHUNK + HALF)), *more]), Watching()
    order = make_order(chunk_rows=2 * CHUNK, on_error="quarantine")
    ran = statements_of(desk, lambda: desk.run(path, order=order, observer=watching))
    step = watching.steps[0]
    assert (step.applied, step.already, step.conflict) == expected
    plain = change == "select 1" and not more
    assert ("sift_events" in ran, "classify_events" in ran) == (not more, not plain)


def test_where_all_is_new_no_row_is_made(desk: Desk) -> None:
    """The rows of a block are not read one by one, not even for the user's SQL."""
    desk.sql("create table total (id text primary key, cents bigint, note text)")
    effect = "insert into total select event_id, amount_cents, note from chunk"
    with patch.object(BlockColumns, "by_row", side_effect=AssertionError("a row was made")):
        report = desk.run(desk.csv(rows_of(range(CHUNK))), order=make_order(chunk_rows=CHUNK, effect=effect))
    assert report.start.applied.rows == CHUNK
    assert desk.sql("select count(*), sum(cents), min(note), max(id) from total") == [(CHUNK, CHUNK * 3, "n", "000599")]


def test_ids_in_any_order_are_written_in_key_order(desk: Desk) -> None:
    """E4: two jobs over the same events cannot deadlock on their keys; lines stay those of the file."""
    rows = [(f"{number * 7919 % 1000:06}", number, "n") for number in range(1000)]
    assert desk.run(desk.csv(rows), order=make_order()).start.applied.rows == 1000
    stored = desk.sql("select event_id, amount_cents, line from pgonce.event order by ctid")
    assert stored == sorted((event_id, amount, amount + 2) for event_id, amount, _ in rows)


def test_without_pyarrow_rows_are_read_one_by_one(desk: Desk) -> None:
    """A bare install comes to the same."""
    with patch("pgonce.engine.reading._has_arrow", return_value=False):
        ran = statements_of(desk, lambda: desk.run(desk.csv(rows_of(range(CHUNK))), order=make_order()))
    assert ran.count("copy_events") == 1
    assert len(desk.effects()) == CHUNK
