"""Whatever would let a program be called safe without having been tested is a plain refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crashtest.programs import SCHEMA, crash_psql, crash_python, plan
from pgonce.crashtest.conduct import conduct
from pgonce.crashtest.faults import Fault
from pgonce.errors import ConfigurationError, Inconclusive

CONNECT = "import psycopg\nwith psycopg.connect('', autocommit=True) as connection:\n    "


def test_a_program_that_does_not_connect_is_not_tested(folder: Path) -> None:
    """A program with another idea of where its database is never comes to the proxy."""
    with pytest.raises(Inconclusive, match="did not connect to the database it was given"):
        crash_python(folder, "print('I work elsewhere')")


def test_a_program_with_a_server_of_its_own_is_cut_off_from_it_and_not_tested(folder: Path) -> None:
    """A hard-wired address leads nowhere: the program has no network but the proxy."""
    with pytest.raises(Inconclusive, match=r"did not connect(.|\n)*Network is unreachable"):
        crash_python(folder, "import psycopg\npsycopg.connect('host=192.0.2.1 connect_timeout=5')")


def test_a_program_that_fails_by_itself_is_not_tested(folder: Path) -> None:
    """There is nothing to compare with, and what it said is repeated."""
    with pytest.raises(Inconclusive, match=r"exit code 1(.|\n)*no_such_table"):
        crash_python(folder, CONNECT + "connection.execute('select * from no_such_table')")


def test_a_program_that_changes_nothing_is_not_tested(folder: Path) -> None:
    """Where nothing changes nothing can be doubled: an empty state proves nothing."""
    with pytest.raises(Inconclusive, match="changes nothing that is compared"):
        crash_python(folder, CONNECT + "connection.execute('select 1')")


def test_a_program_that_changes_only_what_is_left_out_is_not_tested(folder: Path) -> None:
    """If all that changes is a clock, the comparison sees nothing."""
    program = CONNECT + "connection.execute('update clock set at = clock_timestamp()')"
    schema = "create table clock (at timestamptz); insert into clock values ('2001-01-01');"
    with pytest.raises(Inconclusive, match=r"changes nothing that is compared(.|\n)*clock.at is left out"):
        crash_python(folder, program, schema=schema)


def test_a_program_that_leaves_other_rows_at_every_run_is_not_tested(folder: Path) -> None:
    """Two clean runs that differ in their number of rows give nothing to compare with."""
    program = "import os, psycopg\nwith psycopg.connect('', autocommit=True) as connection:\n"
    program += "    connection.execute('insert into ledger (payment_id, amount) select %s::text, 1"
    program += " from generate_series(1, %s)', (str(os.getpid()), os.getpid() % 97 + 1))"
    with pytest.raises(Inconclusive, match="two clean runs from the same state leave different rows in ledger"):
        crash_python(folder, program)


def test_a_program_that_insists_on_tls_is_told_what_to_do(folder: Path) -> None:
    """It knocks, but goes away again before it has logged in; one that can do without is tested."""
    program = "import psycopg\nwith psycopg.connect('sslmode={}', autocommit=True) as connection:\n"
    program += "    connection.execute(\"insert into done values ('P-1') on conflict do nothing\")"
    with pytest.raises(Inconclusive, match=r"asked for TLS(.|\n)*sslmode=disable(.|\n)*server does not support SSL"):
        crash_python(folder, program.format("require"))
    with pytest.raises(Inconclusive, match="asked for TLS"):
        crash_python(folder, program.format("verify-full"))
    assert crash_python(folder, program.format("prefer"), faults=(Fault.CUT_BEFORE,), points_max=1).is_safe


def test_a_program_that_uses_two_databases_is_not_tested(folder: Path) -> None:
    """What it does in the other one would go unseen."""
    program = "import psycopg\npsycopg.connect('dbname=one')\npsycopg.connect('dbname=two')"
    with pytest.raises(Inconclusive, match=re.escape("several databases (one, two)")):
        crash_python(folder, program)


def test_a_program_that_drops_its_database_is_not_tested(folder: Path) -> None:
    """Of a database that is gone nothing can be said."""
    program = "import psycopg\nwith psycopg.connect('', autocommit=True) as c:\n"
    program += "    c.execute('alter database crashtest rename to other')"
    with pytest.raises(Inconclusive, match=r"exit code 1(.|\n)*cannot be renamed"):
        crash_python(folder, program)


def test_a_program_that_goes_on_in_the_background_is_not_tested(folder: Path) -> None:
    """Its work is not over when it ends, so its state cannot be looked at."""
    program = CONNECT + "connection.execute('insert into done values (1)')\n"
    program += "import subprocess\nsubprocess.Popen(['sleep', '300'], start_new_session=True)"
    with pytest.raises(Inconclusive, match=r"did not end within 2 s(.|\n)*sleep 300"):
        crash_python(folder, program, limit_s=2.0)


def test_a_program_that_is_not_there_is_named(folder: Path) -> None:
    """A word that is no program is a mistake in the command."""
    with pytest.raises(ConfigurationError, match="cannot start 'no-such-program'"):
        conduct(plan(folder, ["no-such-program"]), tell=lambda _: None, on_result=lambda *_: None)


def test_a_setup_that_fails_is_told(folder: Path) -> None:
    """What psql said is repeated."""
    with pytest.raises(ConfigurationError, match=r"schema\.sql' failed: (.|\n)*no_such"):
        crash_psql(folder, "select 1", schema="select * from no_such")


def test_a_table_that_is_not_there_cannot_be_left_out(folder: Path) -> None:
    """A mistyped name must not weaken the comparison in silence, nor seem to have worked."""
    with pytest.raises(Inconclusive, match=r"there is no table 'leger'(.|\n)*ledger"):
        crash_psql(folder, "insert into done values (1)", schema=SCHEMA, rules={"log_tables": frozenset({"leger"})})


def test_a_point_that_does_not_exist_cannot_be_chosen(folder: Path) -> None:
    """The known ones are listed."""
    with pytest.raises(Inconclusive, match="no point of a clean run is called abcdef; there are: "):
        crash_psql(folder, "insert into done values (1)", only=frozenset({"abcdef"}))
