"""States are told apart by what rows say and point to, not by their order or by numbers that a sequence gave."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from pgonce.crashtest import state as states
from pgonce.crashtest.base import PLAIN
from pgonce.crashtest.shape import Shape
from pgonce.crashtest.state import Side, State
from pgonce.crashtest.verdict import Row

ORDERS = """
create table customer (id bigint generated always as identity primary key, name text not null);
create table purchase (id serial primary key, customer_id bigint references customer, cents integer);
create table item (purchase_id integer references purchase, nr integer, what text, primary key (purchase_id, nr));
"""
TWO = """
insert into customer (name) values ('alice'), ('bob');
insert into purchase (customer_id, cents) select id, 100 from customer where name = 'alice';
insert into purchase (customer_id, cents) select id, 200 from customer where name = 'bob';
insert into item select id, 1, 'pen' from purchase where cents = 100;
"""


@pytest.fixture
def state_of(make_database: Callable[..., str]) -> Callable[..., State]:
    """Run SQL in a fresh database and read its state."""

    def read(*scripts: str, shape: Shape | None = None) -> State:
        with psycopg.connect(make_database(), autocommit=True, options=PLAIN) as connection:
            for script in scripts:
                connection.execute(script.encode())
            return states.read_state(connection, shape or Shape())

    return read


def marks(state: State) -> dict[str, tuple[int, str]]:
    """Return what tells each table's rows."""
    return {name: table.mark for name, table in state.tables.items()}


def test_gaps_in_sequences_and_the_order_of_rows_do_not_matter(state_of: Callable[..., State]) -> None:
    """A rolled-back insert uses a number up, and a second run inserts in another order: the same rows."""
    gap = "select nextval('customer_id_seq'), nextval('purchase_id_seq')"
    other_order = TWO.replace("('alice'), ('bob')", "('bob'), ('alice')")
    assert marks(state_of(ORDERS, TWO)) == marks(state_of(ORDERS, gap, other_order))


def test_a_reference_to_another_row_is_another_row(state_of: Callable[..., State]) -> None:
    """Two purchases swapped between two customers: all columns hold the same values, and it is not the same."""
    swapped = TWO.replace("'alice';", "'x';").replace("'bob';", "'alice';").replace("'x';", "'bob';")
    right, wrong = marks(state_of(ORDERS, TWO)), marks(state_of(ORDERS, swapped))
    assert right["customer"] == wrong["customer"]
    assert right["purchase"] != wrong["purchase"]
    assert right["item"] != wrong["item"], "an item is told by its purchase, and that by its customer"


def test_a_reference_to_nothing_is_not_one_to_some_row(state_of: Callable[..., State]) -> None:
    """Null is told from a row, also where a row refers to its own table."""
    tree = "create table node (id serial primary key, parent integer references node, name text);"
    root = "insert into node (name) values ('a'); insert into node (parent, name) "
    assert marks(state_of(tree, root + "select id, 'b' from node")) != marks(
        state_of(tree, root + "values (null, 'b')")
    )


def test_a_column_called_as_we_call_the_row_hides_no_other(state_of: Callable[..., State]) -> None:
    """Names of the comparison's own queries may be column names of the user's."""
    table = "create table t (x integer, h integer, s text, t text, x1 integer, r integer);"
    first, second = "insert into t values (1, 1, 'a', 'a', 1, 1)", "insert into t values (1, 1, 'b', 'a', 1, 1)"
    assert marks(state_of(table, first)) != marks(state_of(table, second))


def test_doubled_rows_have_another_digest_than_other_doubled_rows(state_of: Callable[..., State]) -> None:
    """A sum of hashes tells how often each row is there, not only which rows."""
    table = "create table t (v integer);"
    one, two = "insert into t values (1), (1), (2)", "insert into t values (1), (2), (2)"
    assert marks(state_of(table, one)) != marks(state_of(table, two))


def test_tables_of_every_schema_are_seen(state_of: Callable[..., State]) -> None:
    """Partitions, materialised views and tables in other schemas are compared; temporary tables are not."""
    state = state_of(
        "create schema other; create table other.t (v integer); insert into other.t values (1);"
        "create table part (v integer) partition by list (v); create table part_1 partition of part for values in (1);"
        "insert into part values (1); create materialized view seen as select v from part;"
        "create temporary table mine (v integer); create unlogged table loose (v integer); create table empty ()"
    )
    assert {name: table.rows for name, table in state.tables.items()} == {
        "other.t": 1,
        "part_1": 1,
        "seen": 1,
        "loose": 0,
        "empty": 0,
    }


@pytest.mark.parametrize(
    "change",
    [
        "create table stage (v integer)",
        "alter table t alter v type bigint",
        "alter table t alter v set default 5",
        "create index on t (v)",
        "alter table t add check (v > 0)",
        "create function f() returns integer language sql as 'select 1'",
        "create view seen as select v from t",
        "create trigger noise before update on t for each row execute function suppress_redundant_updates_trigger()",
        "create type mood as enum ('good')",
        "grant select on t to public",
        "drop extension plpgsql",
        "alter table t enable row level security",
        "select lo_create(0)",
    ],
)
def test_every_change_of_the_schema_is_seen(state_of: Callable[..., State], change: str) -> None:
    """What is not a row is described part by part, so that the report can name it."""
    table = "create table t (v integer);"
    assert state_of(table).schema != state_of(table, change).schema
    assert state_of(table).schema == state_of(table).schema


def test_the_rows_that_differ_are_found_in_a_large_table(make_database: Callable[..., str]) -> None:
    """Of a hundred thousand rows the one that is there twice and the one that is missing are fetched, and no other."""
    rows = "create table t (k integer primary key generated always as identity, v text);"
    rows += "insert into t (v) select 'row ' || n from generate_series(1, 100000) as n;"
    clean_dsn, now_dsn = make_database(), make_database()
    with psycopg.connect(clean_dsn, autocommit=True) as clean, psycopg.connect(now_dsn, autocommit=True) as now:
        for connection in (clean, now):
            connection.execute(rows.encode())
        now.execute("insert into t (v) values ('row 7')")
        now.execute("delete from t where v = 'row 9'")
        catalogue = states.read_state(now, Shape()).catalogue
        sides = [Side(connection, catalogue) for connection in (clean, clean, now)]
        found = states.differing_rows(*sides, table="t", shape=Shape())
    assert found == (Row('{"v": "row 7"}', 1, 1, 2), Row('{"v": "row 9"}', 1, 1, 0))


def test_a_column_that_is_left_out_is_left_out_everywhere(state_of: Callable[..., State]) -> None:
    """Its values make no difference, also not through a reference to its row."""
    schema = "create table a (id uuid primary key, v text); create table b (a_id uuid references a, n integer);"
    fill = "insert into a values ('{0}', 'x'); insert into b values ('{0}', 1);"
    ids = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")
    shape = Shape(left_out={"a": frozenset({"id"}), "b": frozenset({"a_id"})})
    first, second = (marks(state_of(schema, fill.format(one), shape=shape)) for one in ids)
    assert first == second
    assert marks(state_of(schema, fill.format(ids[0]))) != marks(state_of(schema, fill.format(ids[1])))
