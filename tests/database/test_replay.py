"""A chunk that was settled before is recognised by one hash, and only if every event is stored just so."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from database.jobs import Desk, Watching, make_order, soon
from database.test_fast_path import MANY, replayed, rows_of, statements_of
from pgonce.db.arrays import bigint_array, text_array
from pgonce.engine.batch import RowBatch
from pgonce.errors import InvariantBroken
from pgonce.model.row import Row

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


def row(event_id: str, amount_cents: int, payload: str) -> Row:
    """Make a row; its line and fields do not matter here."""
    return Row(1, "", event_id, amount_cents, payload, {}, b"")


def test_the_hash_is_the_server_s(desk: Desk) -> None:
    """Made here and there of the same events: any text, any amount, in the order of bytes."""

    @given(st.dictionaries(TEXTS, st.tuples(st.integers(-(2**63), 2**63 - 1), TEXTS), min_size=1, max_size=12))
    def check(events: dict[str, tuple[int, str]]) -> None:
        rows = [row(event_id, *events[event_id]) for event_id in sorted(events)]
        with desk.clerk.session.transaction(soon(desk.clerk), commit=False) as transaction:
            transaction.connection.execute(
                """insert into pgonce.event (amount_cents, run_id, line, epoch, job, source, event_id, status, payload)
                select a, 1, 1, 1, 'pay', '', i, 'completed', p from unnest(%s, %s, %s) as k (i, a, p)""",
                (
                    text_array([one.event_id for one in rows]),
                    bigint_array([one.amount_cents for one in rows]),
                    text_array([one.payload for one in rows]),
                ),
            )
            found = transaction.row(
                "digest_events",
                job="pay",
                source="",
                low=rows[0].event_id,
                high=rows[-1].event_id,
                rows=len(rows),
                payload_bytes=1000,
            )
        assert found == (RowBatch(rows).digest(), len(rows), 1, 1, True)

    check()


@given(st.lists(st.tuples(TEXTS, st.integers(0, 9), TEXTS), max_size=3), st.data())
def test_other_rows_have_another_hash(events: list[tuple[str, int, str]], data: Any) -> None:
    """Moving a character from one field or row to the next makes other bytes to hash."""
    others = data.draw(st.lists(st.tuples(TEXTS, st.integers(0, 9), TEXTS), max_size=3))
    assert (RowBatch([row(*one) for one in events]).digest() == RowBatch([row(*one) for one in others]).digest()) == (
        events == others
    )


def test_arrays_are_what_the_server_reads(desk: Desk) -> None:
    """Texts, nulls and numbers of 64 bits, and none of them."""
    connection = desk.clerk.session.connect(soon(desk.clerk))

    @given(st.lists(st.one_of(st.none(), TEXTS), max_size=5), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
    def check(texts: list[str | None], numbers: list[int]) -> None:
        found = connection.execute("select %s, %s", (text_array(texts), bigint_array(numbers))).fetchone()
        assert found == (texts, numbers)

    check()


CHANGES: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "nothing": ("select 1", (0, 0, 0, 0)),
    "an event is missing": ("delete from pgonce.event where event_id = '000007'", (1, 0, 0, -1)),
    "one is more": (
        """insert into pgonce.event (amount_cents, run_id, line, epoch, job, source, event_id, status, payload)
        values (3, 2, 1, 1, 'pay', '', '000007x', 'completed', '["n"]')""",
        (0, 0, 0, 0),
    ),
    "another amount": ("update pgonce.event set amount_cents = 4 where event_id = '000007'", (0, 1, 0, -1)),
    "another payload": ("update pgonce.event set payload = '[\"m\"]' where event_id = '000007'", (0, 1, 0, -1)),
    "a long payload": (
        "update pgonce.event set payload = '[\"' || repeat('m', 9999) || '\"]' where event_id = '000007'",
        (0, 1, 0, -1),
    ),
    "pending": ("update pgonce.event set status = 'pending' where event_id = '000007'", (1, 0, 0, -1)),
    "failed": ("update pgonce.event set status = 'failed' where event_id = '000007'", (0, 0, 0, -1)),
    "of another run": ("update pgonce.event set run_id = 2 where event_id = '000007'", (0, 0, 0, 0)),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_is_not_just_so_is_compared_one_by_one(desk: Desk, change: str, expected: tuple[int, ...]) -> None:
    """I2, I3: such a chunk comes to what the exact path makes of it; a hash that is the same is all there is to ask."""
    path = desk.csv(rows_of(range(MANY)))
    desk.run(path, order=make_order(chunk_rows=MANY))
    desk.run(desk.csv([("another", 1, "run")]))
    desk.sql("alter table pgonce.event disable trigger user; alter table pgonce.effect disable trigger user")
    desk.sql(change)
    if expected[0]:
        desk.sql("delete from pgonce.effect where event_id = '000007'")
    watching = Watching()
    ran = statements_of(desk, lambda: read_again(desk, path, watching))
    step = watching.steps[0]
    assert (step.applied, step.conflict, step.rejected, step.already - MANY) == expected
    assert (ran.count("digest_events"), ran.count("classify_events")) == (1, int(change != "select 1"))


def read_again(desk: Desk, path: Any, watching: Watching) -> None:
    """Read a finished input again; it need not balance, as its events were changed under it."""
    desk.sql("update pgonce.run set touched = true")
    with contextlib.suppress(InvariantBroken):
        desk.run(path, order=make_order(chunk_rows=MANY, on_error="quarantine"), observer=watching)


def test_ids_that_lie_far_apart_are_soon_not_hashed_any_more(desk: Desk) -> None:
    """Every chunk holds every tenth id: its hash cannot be the same, which is noticed after three of them."""
    ids = [number for start in range(10) for number in range(start, MANY * 10, 10)]
    path = desk.csv([(f"{number:06}", 3, "n") for number in ids])
    desk.run(path, order=make_order(chunk_rows=MANY))
    ran = statements_of(desk, lambda: replayed(desk, path))
    assert (ran.count("digest_events"), ran.count("classify_events")) == (3, 10)
