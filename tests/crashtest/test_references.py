"""A column that holds another row's generated key is compared by that row, also without a foreign key to say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from crashtest.programs import crash_python
from pgonce.crashtest import astext
from pgonce.crashtest import state as states
from pgonce.crashtest.asjson import report_as_dict
from pgonce.crashtest.base import PLAIN
from pgonce.crashtest.catalogue import Reference
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.report import Report
from pgonce.crashtest.shape import Shape
from pgonce.crashtest.verdict import Verdict

BOOKED = "create table booked (payment_id text primary key, run_id {0});"
IDENTITY = "create table run (id bigint generated always as identity primary key, what text unique);"
MADE_BY_THE_PROGRAM = "create table run (id uuid primary key, what text unique);"

HEAD = """
import psycopg, sys, uuid
with psycopg.connect("", autocommit={is_autocommit}) as c:
    def make(what):
        {key} = uuid.uuid4()
        return c.execute("insert into run {columns} on conflict do nothing returning id", {values}).fetchone()
"""
# The parent of a row is taken from what the insert returned; a run that finds the parent there takes it for another.
TAKES_ANY = """
    make("second")
    found = make("first") or c.execute("select id from run where what <> 'first'").fetchone()
    c.execute("insert into booked values ('P-1', %s) on conflict do nothing", found)
"""
TAKES_ITS_OWN = TAKES_ANY.replace("<> 'first'", "= 'first'")


def program(body: str, key: str, *, is_autocommit: bool = True) -> str:
    """Return a program whose keys come from the server's sequence, or are made by itself."""
    columns = "(what) values (%s)" if key == "sequence" else "(what, id) values (%s, %s)"
    values = "(what,)" if key == "sequence" else "(what, key)"
    return HEAD.format(is_autocommit=is_autocommit, key="key", columns=columns, values=values) + body


def crash(folder: Path, body: str, key: str, *, is_autocommit: bool = True, faults: tuple[Fault, ...]) -> Report:
    """Test a program with one kind of keys."""
    schema = IDENTITY + BOOKED.format("bigint") if key == "sequence" else MADE_BY_THE_PROGRAM + BOOKED.format("uuid")
    return crash_python(folder, program(body, key, is_autocommit=is_autocommit), schema=schema, faults=faults)


@pytest.mark.parametrize("key", ["sequence", "uuid"])
def test_numbers_that_only_moved_on_are_no_difference(folder: Path, key: str) -> None:
    """After a rollback the keys are other ones, and the row points to the same row; the report says which columns."""
    report = crash(folder, TAKES_ITS_OWN, key, is_autocommit=False, faults=(Fault.CUT_BEFORE, Fault.SERIALIZATION))
    assert report.is_safe, report.sentence
    assert report.baseline.references == ("booked.run_id = run.id",)
    assert "booked.run_id" not in report.baseline.left_out
    assert report_as_dict(report)["references"] == ["booked.run_id = run.id"]
    assert any("without a foreign key: booked.run_id = run.id" in line for line in astext.lines(report))


@pytest.mark.parametrize("key", ["sequence", "uuid"])
def test_a_row_that_points_to_the_wrong_row_is_seen(folder: Path, key: str) -> None:
    """As many rows as there should be, every value a key that exists, and yet the wrong one."""
    report = crash(folder, TAKES_ANY, key, faults=(Fault.CUT_BEFORE,))
    wrong = [result for result in report.results if result.verdict is Verdict.CHANGED]
    assert [result.trial.met.words[:18] for result in wrong] == ["insert into booked"]
    assert [row.text for row in wrong[0].evidence.tables[0].rows if row.now] == [
        '{"run_id": "{\\"what\\": \\"second\\"}", "payment_id": "P-1"}'
    ]
    right = crash(folder, TAKES_ITS_OWN, key, faults=(Fault.CUT_BEFORE,))
    assert right.is_safe, right.sentence


@pytest.mark.parametrize("begin", [1, 10_000])
def test_a_value_that_happens_to_be_a_key_is_no_reference(folder: Path, begin: int) -> None:
    """Numbers by chance, among the keys of rows which say something else or beyond them: left out, as other ones."""
    schema = "create table item (id integer generated always as identity primary key, name text);"
    schema += "insert into item (name) select 'item ' || n from generate_series(1, 1000) as n;"
    schema += "create table thrown (name text primary key, dice integer not null);"
    thrown = "import psycopg, random\nwith psycopg.connect('', autocommit=True) as c:\n"
    thrown += f"    dice = random.randint({begin}, {begin + 999})\n"
    thrown += "    c.execute(\"insert into thrown values ('a', %s) on conflict do nothing\", (dice,))\n"
    report = crash_python(folder, thrown, schema=schema, faults=(Fault.CUT_BEFORE, Fault.CUT_AFTER))
    assert report.is_safe, report.sentence
    assert report.baseline.references == ()
    assert report.baseline.left_out == ("thrown.dice",)


def test_a_key_of_a_table_that_is_not_compared_is_left_out(folder: Path) -> None:
    """What a log says is not compared, so no other table is compared by it."""
    schema = IDENTITY + BOOKED.format("bigint")
    report = crash_python(
        folder,
        program(TAKES_ITS_OWN, "sequence"),
        schema=schema,
        faults=(Fault.CUT_BEFORE,),
        points_max=2,
        rules={"log_tables": frozenset({"run"})},
    )
    assert report.baseline.references == ()
    assert report.baseline.left_out == ("booked.run_id",)


def test_a_reference_that_leads_nowhere_is_not_one_to_nothing(make_database: Callable[..., str]) -> None:
    """No foreign key keeps the row there: null, a row, another row and a row that is gone are four different things."""
    found = {"booked": (Reference(("run_id",), "run", ("id",), is_declared=False),)}
    marks = set()
    for value in ("null", "1", "2", "3"):
        with psycopg.connect(make_database(), autocommit=True, options=PLAIN) as connection:
            connection.execute((IDENTITY + BOOKED.format("bigint")).encode())
            connection.execute("insert into run (what) values ('one'), ('two')")
            connection.execute(f"insert into booked values ('P-1', {value})".encode())
            marks.add(states.read_state(connection, Shape(found=found)).tables["booked"].mark)
    assert len(marks) == 4
