"""Small programs to be tested, right and wrong, and what tests them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgonce.crashtest.baseline import Rules
from pgonce.crashtest.conduct import conduct
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.lane import Command
from pgonce.crashtest.plan import Plan
from pgonce.crashtest.report import Report
from pgonce.crashtest.verdict import Verdict
from pgonce.server import find_binaries

SCHEMA = """
create table payment (id text primary key, amount integer not null);
insert into payment values ('P-1', 50), ('P-2', 20);
create table ledger (id bigint generated always as identity primary key, payment_id text not null,
                     amount integer not null, at timestamptz not null default clock_timestamp());
create table done (payment_id text primary key);
create table balance (name text primary key, cents integer not null);
insert into balance values ('till', 0);
"""

INSERT_THEN_MARK = """
import psycopg
with psycopg.connect("", autocommit=True) as connection:
    todo = "select id, amount from payment where id not in (select payment_id from done) order by id"
    for payment, amount in connection.execute(todo).fetchall():
        connection.execute("insert into ledger (payment_id, amount) values (%s, %s)", (payment, amount))
        connection.execute("insert into done values (%s)", (payment,))
"""

GUARDED = """
import psycopg
with psycopg.connect("", autocommit=True) as connection:
    for payment, amount in connection.execute("select id, amount from payment order by id").fetchall():
        with connection.transaction():
            mark = "insert into done values (%s) on conflict do nothing returning 1"
            if connection.execute(mark, (payment,)).fetchone():
                connection.execute("insert into ledger (payment_id, amount) values (%s, %s)", (payment, amount))
"""

INSERT_THEN_MARK_SQL = """
select not exists (select from done where payment_id = 'P-1') as todo \\gset
\\if :todo
insert into ledger (payment_id, amount) select id, amount from payment where id = 'P-1';
insert into done values ('P-1');
\\endif
"""

GUARDED_SQL = """
begin;
with marked as (insert into done values ('P-1') on conflict do nothing returning 1)
select count(*) > 0 as is_new from marked \\gset
\\if :is_new
insert into ledger (payment_id, amount) select id, amount from payment where id = 'P-1';
\\endif
commit;
"""

PSQL = str(find_binaries().bin_dir / "psql")


def plan(folder: Path, argv: Sequence[str], *, schema: str = SCHEMA, **options: Any) -> Plan:
    """Make a plan for a program in a folder; ``rules`` and ``command`` are dicts of what differs from the usual."""
    setup = folder.parent / "schema.sql"
    setup.write_text(schema)
    command = Command(argv=tuple(argv), folder=folder, **options.pop("command", {}))
    rules = Rules(**options.pop("rules", {}))
    faults = options.pop("faults", tuple(Fault))
    return Plan(command=command, setup=(setup,), rules=rules, faults=tuple(faults), **options)


def crash_python(folder: Path, program: str, **options: Any) -> Report:
    """Test a Python program."""
    (folder / "program.py").write_text(program)
    return conduct(
        plan(folder, [sys.executable, "program.py"], **options), tell=lambda _: None, on_result=lambda *_: None
    )


def crash_psql(folder: Path, script: str, **options: Any) -> Report:
    """Test a psql script; an error ends it."""
    (folder / "job.sql").write_text(script)
    argv = [PSQL, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "job.sql"]
    return conduct(plan(folder, argv, **options), tell=lambda _: None, on_result=lambda *_: None)


def table_of(report: Report) -> list[tuple[str, str, Verdict]]:
    """List every trial as statement, blow and verdict, in order."""
    return [(result.trial.met.words, result.trial.blow.name, result.verdict) for result in report.results]


def unsafe_of(report: Report) -> set[tuple[str, str, str]]:
    """Return statement (its first two words), blow and verdict of whatever is not safe."""
    return {
        (" ".join(words.split()[:3]), blow, verdict.value)
        for words, blow, verdict in table_of(report)
        if verdict is not Verdict.SAFE
    }
