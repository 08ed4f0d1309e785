"""What the tests of clones on the original's own server share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from crashtest.programs import INSERT_THEN_MARK_SQL, crash_psql
from pgonce.crashtest.base import PLAIN
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.report import Report
from pgonce.crashtest.shape import Shape
from pgonce.crashtest.state import State, read_state

DOUBLED = {
    ("insert into ledger", "cut-after", "DOUBLED"),
    ("insert into done", "cut-before", "DOUBLED"),
}
CUTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER)


def ours(dsn: str) -> list[str]:
    """Name every database of a crash test on a server."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select datname from pg_database where datname ~ 'crashtest' order by 1")
        return [str(row[0]) for row in rows]


def everything(dsn: str) -> tuple[State, list[Any]]:
    """Read the state of a database, its place in the list of databases, and the settings of all."""
    with psycopg.connect(dsn, autocommit=True, options=PLAIN) as connection:
        state = read_state(connection, Shape())
        rows = connection.execute(
            "select to_jsonb(d) - 'datfrozenxid' - 'datminmxid', to_jsonb(s)"
            " from pg_database as d left join pg_db_role_setting as s on s.setdatabase = d.oid"
            " where d.datname = current_database() or d.datname !~ '^pgonce_test' order by d.oid, s.setrole"
        )
        return state, rows.fetchall()


def crash(folder: Path, dsn: str, script: str = INSERT_THEN_MARK_SQL, **options: Any) -> Report:
    """Test a psql script on clones of a database."""
    return crash_psql(folder, script, schema="select 1", original_dsn=dsn, on_server=True, **options)
