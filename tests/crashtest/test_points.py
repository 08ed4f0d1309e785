"""A point is recognised in another run by what it is, never by its number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.crashtest.boundary import Boundary
from pgonce.crashtest.points import Met, Tracker, Trail, sample, without_values
from pgonce.crashtest.wire import Kind, normalised


def met(*told: tuple[int, str, str]) -> list[Met]:
    """Meet queries: connection, statement, status of the transaction before it."""
    tracker = Tracker()
    boundaries = (
        Boundary(connection, number, number, Kind.QUERY, text, status)
        for number, (connection, text, status) in enumerate(told, 1)
    )
    return [tracker.meet(boundary) for boundary in boundaries]


@pytest.mark.parametrize(
    ("statement", "shape"),
    [
        ("insert into t values (1, 'it''s', E'a\\'b')", "insert into t values (?)"),
        ("insert into t values (1, 2), (3, 4)", "insert into t values (?)"),
        ("select $1, t1.a from t1 where b = -4.5e3", "select $1, t1.a from t1 where b = ?"),
        ("do $x$ begin perform 1; end $x$", "do ?"),
        ("select 'cut off in the mid", "select ?"),
        ("savepoint s_1", "savepoint s_1"),
        ('SAVEPOINT "s139719357029248_x1"', 'SAVEPOINT "s#_x1"'),
        ("create table tmp_3f2a9c1b7d604e (a int)", "create table tmp_# (a int)"),
        ("select cafe, t2024 from decade", "select cafe, t2024 from decade"),
    ],
)
def test_values_do_not_name_a_point(statement: str, shape: str) -> None:
    """The same statement with other values is the same point."""
    assert without_values(statement) == shape


def test_another_connection_in_between_does_not_move_a_point() -> None:
    """Two connections with different beginnings have points of their own, in whatever order they come."""
    first = met((1, "select 1 as a", "I"), (2, "listen x", "I"), (1, "update t", "I"), (2, "update t", "I"))
    second = met((1, "listen x", "I"), (1, "update t", "I"), (2, "select 2 as a", "I"), (2, "update t", "I"))
    assert {one.point.id for one in first} == {one.point.id for one in second}
    assert len({one.point.id for one in first}) == 4


def test_the_place_in_the_transaction_is_told() -> None:
    """A person finds the statement by it."""
    places = [
        one.place
        for one in met(
            (1, "select now()", "I"),
            (1, "BEGIN", "I"),
            (1, "insert into t values (1)", "T"),
            (1, "COMMIT", "T"),
            (1, "begin", "I"),
        )
    ]
    assert places == [
        "a transaction of its own (number 1 of its connection)",
        "statement 1 of transaction 2",
        "statement 2 of transaction 2",
        "the COMMIT of transaction 2",
        "statement 1 of transaction 3",
    ]


def test_a_sample_has_first_and_last_of_each_place() -> None:
    """A COMMIT after the effect and a COMMIT after the mark are two places, whatever both are called."""
    told = []
    for number in range(20):
        told += [(1, f"insert into effect values ({number})", "T"), (1, "commit", "T")]
        told += [(1, f"insert into mark values ({number})", "T"), (1, "commit", "T")]
    every = met(*told)
    chosen = sample(every, per_group=2, seed=1)
    commits = [one for one in chosen if one.point.text == "commit"]
    assert {one.group[3].split(" ")[2] for one in commits} == {"effect", "mark"}
    assert every[1] in chosen
    assert every[-1] in chosen
    assert len(chosen) == 8 + 1  # the very first effect has nothing before it, a place of its own
    assert sample(every, per_group=None, seed=1) == every
    assert sample(every, per_group=3, seed=1) == sample(every, per_group=3, seed=1)


WORDS = st.lists(
    st.sampled_from(
        [
            "update",
            "insert",
            "e",
            "abc",
            "t1",
            "7",
            "'x 1'",
            "E'a'",
            "$$b$$",
            "deadbeef12345",
            "s_1234567",
            "?",
            ";",
            "--",
            "x",
        ]
    ),
    max_size=6,
).map(" ".join)
BOUNDARIES = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([Kind.QUERY, Kind.SYNC, Kind.STARTUP]), WORDS), min_size=1, max_size=12
)


@given(told=BOUNDARIES, data=st.data())
def test_a_trail_finds_the_sought_point_where_a_tracker_meets_it(
    told: list[tuple[int, Kind, str]], data: st.DataObject
) -> None:
    """Recognising only what could be the point strikes at the same boundary as recognising everything."""
    boundaries = [
        Boundary(connection, number, number, kind, normalised(text.encode()))
        for number, (connection, kind, text) in enumerate(told, 1)
    ]
    tracker = Tracker()
    every = [tracker.meet(boundary) for boundary in boundaries]
    sought = data.draw(st.sampled_from(every)).point
    trail = Trail(sought)
    reached = [boundary for boundary in boundaries if trail.reaches(boundary)]
    assert reached == [one.boundary for one in every if one.point == sought]
    assert trail.met() == every
