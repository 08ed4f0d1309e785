"""Programs of many kinds, each with the one verdict that is right for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from crashtest.programs import SCHEMA, crash_psql, crash_python, table_of, unsafe_of
from pgonce.crashtest import astext
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.verdict import Verdict

OFFSET_FILE = """
import pathlib, psycopg
kept = pathlib.Path("offset")
done = int(kept.read_text()) if kept.exists() else 0
with psycopg.connect("", autocommit=True) as connection:
    for number in range(done, 2):
        connection.execute("update balance set cents = cents + 7")
        kept.write_text(str(number + 1))
"""


def test_an_offset_file_is_kept_between_the_runs_and_put_back_before_each_point(folder: Path) -> None:
    """Killed between the commit and the file the row is done twice; the file itself ends as it should."""
    report = crash_python(folder, OFFSET_FILE, faults=(Fault.KILL,), rules={"files": ("offset",)})
    assert unsafe_of(report) == {("update balance set", "kill (after)", "DOUBLED")}
    assert len(report.unsafe) == 2
    assert report.baseline.again[0] is Verdict.SAFE, "a second run finds the file and does nothing"
    assert report.baseline.files.keys() == {"offset"}


def test_an_offset_that_is_saved_first_loses_a_row(folder: Path) -> None:
    """The other order of the same two lines."""
    lines = OFFSET_FILE.splitlines()
    lines[-2], lines[-1] = lines[-1], lines[-2]
    report = crash_python(folder, "\n".join(lines), faults=(Fault.CUT_BEFORE, Fault.KILL))
    assert unsafe_of(report) == {("update balance set", blow, "LOST") for blow in ("cut-before", "kill (before)")}


def test_a_swallowed_error_is_told_where_only_a_further_run_makes_it_good(folder: Path) -> None:
    """Safe to run again, but it said that all is well when it was not, and nobody has a reason to run it again."""
    program = "import psycopg\nconnection = psycopg.connect('', autocommit=True)\ntry:\n"
    program += "    connection.execute(\"insert into done values ('P-1') on conflict do nothing\")\n"
    program += "except psycopg.Error:\n    pass\n"
    report = crash_python(folder, program, faults=(Fault.CUT_BEFORE, Fault.SERIALIZATION))
    assert report.is_safe
    assert report.too_early == 2
    early = [result for result in report.results if len(result.notes) == 2]
    assert {result.exits for result in early} == {("exit 0", "exit 0")}
    assert "done: 0 rows, 1 after a clean run" in early[0].notes[1]
    assert any("in 2 trials the program ended well before its work was done" in line for line in astext.lines(report))


def test_an_error_that_is_swallowed_with_the_work_marked_as_done_is_lost(folder: Path) -> None:
    """The mark is written although the effect failed, so no further run makes it good."""
    program = "import psycopg\nconnection = psycopg.connect('', autocommit=True)\n"
    program += "if not connection.execute('select 1 from done').fetchone():\n    try:\n"
    program += "        connection.execute('update balance set cents = cents + 7')\n"
    program += "    except psycopg.Error:\n        pass\n"
    program += "    connection.execute(\"insert into done values ('P-1')\")\n"
    report = crash_python(folder, program, faults=(Fault.SERIALIZATION,))
    lost, doubled = ("update balance set", "serialization", "LOST"), ("insert into done", "serialization", "DOUBLED")
    assert unsafe_of(report) == {lost, doubled}


def test_a_retry_of_the_lost_commit_doubles_and_the_sum_tells(folder: Path) -> None:
    """A program that tries again by itself is run to its end, and judged by what it did."""
    program = "import psycopg\nfor attempt in range(3):\n    try:\n        with psycopg.connect('') as connection:\n"
    program += "            connection.execute('update balance set cents = cents + 7')\n        break\n"
    program += "    except psycopg.OperationalError:\n        pass\n"
    report = crash_python(folder, program, faults=(Fault.CUT_AFTER,), only=frozenset())
    commit = next(result for result in report.results if result.trial.met.words == "COMMIT")
    assert commit.verdict is Verdict.DOUBLED
    assert commit.exits[0] == "exit 0"
    assert commit.trial.met.place == "the COMMIT of transaction 1"


def test_a_lock_file_that_is_left_is_stuck_only_if_the_program_gives_up(folder: Path) -> None:
    """The second run finds the first one's lock, fails, and fails again: a person has to help."""
    program = "import os, psycopg\nos.mkdir('lock')\nwith psycopg.connect('') as connection:\n"
    program += "    connection.execute(\"insert into done values ('P-1') on conflict do nothing\")\nos.rmdir('lock')\n"
    report = crash_python(folder, program, faults=(Fault.KILL,), points_max=2)
    assert {verdict for _, _, verdict in table_of(report)} == {Verdict.STUCK}
    assert "fails again and again" in report.unsafe[0].why
    assert report.unsafe[0].exits == ("killed by signal 9", "exit 1", "exit 1")
    assert "FileExistsError" in report.unsafe[0].output


def test_a_program_that_refuses_a_second_run_is_stuck_unless_its_exit_code_is_named(folder: Path) -> None:
    """One transaction with plain inserts: all is there once, but after a lost answer every further run fails."""
    script = "begin;\ninsert into done select id from payment;\nupdate balance set cents = cents + 70;\ncommit;\n"
    report = crash_psql(folder, script, faults=(Fault.CUT_BEFORE, Fault.CUT_AFTER))
    assert report.baseline.again[0] is Verdict.STUCK
    assert "duplicate key" in report.baseline.again_output
    assert ("commit", "cut-after", "STUCK") in unsafe_of(report)
    assert ("commit", "cut-before", "STUCK") not in unsafe_of(report)
    lost = next(result for result in report.unsafe if result.trial.met.words == "commit")
    assert lost.exits == ("exit 2", "exit 3", "exit 3")
    assert "with the right state" in lost.why
    named = crash_psql(
        folder, script, faults=(Fault.CUT_BEFORE, Fault.CUT_AFTER), rules={"ok_exits": frozenset({0, 3})}
    )
    assert named.is_safe


def test_a_log_of_runs_is_changed_until_it_is_named(folder: Path) -> None:
    """A table to which every run adds is found by a plain second run, and left out when it is called a log."""
    schema = SCHEMA + "create table run_log (id serial, what text);"
    script = (
        "insert into done select id from payment on conflict do nothing;\ninsert into run_log (what) values ('ran');"
    )
    report = crash_psql(folder, script, schema=schema, faults=(Fault.CUT_BEFORE,))
    assert report.baseline.again[0] is Verdict.DOUBLED
    assert not report.is_safe
    named = crash_psql(
        folder, script, schema=schema, faults=(Fault.CUT_BEFORE,), rules={"log_tables": frozenset({"run_log"})}
    )
    assert named.is_safe


def test_what_an_unfinished_run_left_in_the_schema_is_changed(folder: Path) -> None:
    """A staging table that only the end of the run drops: the second run goes round it, and it stays."""
    script = "select to_regclass('stage') is null as fresh \\gset\n\\if :fresh\ncreate table stage (id text);\n\\else\n"
    script += "insert into done select id from payment on conflict do nothing;\n\\quit\n\\endif\n"
    script += "insert into done select id from payment on conflict do nothing;\ndrop table stage;\n"
    report = crash_psql(folder, script, faults=(Fault.CUT_BEFORE,))
    changed = [result for result in report.results if result.verdict is Verdict.CHANGED]
    assert [result.trial.met.words for result in changed] == [
        "insert into done select id from payment on conflict do nothing",
        "drop table stage",
    ]
    assert "relation public.stage is there" in changed[0].evidence.schema


def test_an_invariant_is_looked_at_beside_the_state(folder: Path) -> None:
    """A query that must give no rows says what equality cannot: here the table itself is not compared."""
    report = crash_psql(
        folder,
        "insert into done select 'P-1' where not exists (select from done);\nupdate balance set cents = cents + 7;",
        faults=(Fault.CUT_AFTER,),
        rules={"ignore": frozenset({"balance"}), "invariants": ("select * from balance where cents > 7",)},
    )
    assert report.baseline.again[0] is Verdict.CHANGED
    assert "an invariant does not hold" in report.baseline.again[1]
    assert "balance" not in report.baseline.compared


def test_several_processes_and_connections_have_points_of_their_own(folder: Path) -> None:
    """A shell script with two clients: each one's statements are failed, also while the other is idle."""
    (folder / "job.sh").write_text(
        "set -e\npsql -Xq -v ON_ERROR_STOP=1 -c \"insert into ledger (payment_id, amount) values ('P-1', 50)\"\n"
        "psql -Xq -v ON_ERROR_STOP=1 -c \"insert into done values ('P-1')\"\n"
    )
    program = "import subprocess, sys, os, psycopg\nidle = psycopg.connect('')\n"
    program += "if not idle.execute('select 1 from done').fetchone():\n    idle.commit()\n"
    program += f"    os.environ['PATH'] = {str(_bin())!r} + ':' + os.environ['PATH']\n"
    program += "    sys.exit(subprocess.run(['sh', 'job.sh']).returncode)\n"
    report = crash_python(folder, program, faults=(Fault.CUT_AFTER, Fault.CUT_BEFORE))
    assert ("insert into ledger", "cut-after", "DOUBLED") in unsafe_of(report)
    assert ("insert into done", "cut-before", "DOUBLED") in unsafe_of(report)
    labels = {result.trial.met.point.label for result in report.results}
    assert {"BEGIN", "insert into ledger (payment_id, amount) values (?)"} <= labels


def test_a_worker_that_never_ends_is_over_when_its_work_is_done(folder: Path) -> None:
    """A query says when; a worker that does not survive the fault is started again, and one that does is judged too."""
    program = "import psycopg, time\nwith psycopg.connect('', autocommit=True) as c:\n    while True:\n"
    program += (
        "        for (p,) in c.execute('select id from payment except select payment_id from done').fetchall():\n"
    )
    program += "            c.execute('update balance set cents = cents + 7')\n"
    program += "            c.execute('insert into done values (%s)', (p,))\n        time.sleep(0.02)\n"
    until = "select (select count(*) from done) = (select count(*) from payment)"
    report = crash_python(folder, program, command={"until": until}, faults=(Fault.CUT_AFTER,), per_statement=1)
    assert ("update balance set", "cut-after", "DOUBLED") in unsafe_of(report)
    assert ("insert into done", "cut-after", "DOUBLED") not in unsafe_of(report)


def test_a_pipeline_is_failed_statement_by_statement(folder: Path) -> None:
    """Between two statements that were sent together there is a point, too, and a transaction covers them."""
    program = "import psycopg\nwith psycopg.connect('') as connection, connection.pipeline():\n"
    program += "    connection.execute(\"insert into done values ('P-1') on conflict do nothing\")\n"
    program += "    connection.execute(\"insert into done values ('P-2') on conflict do nothing\")\n"
    report = crash_python(folder, program, faults=(Fault.CUT_AFTER, Fault.CUT_BEFORE))
    assert report.is_safe
    kinds = [result.trial.met.boundary.kind.value for result in report.results]
    assert kinds.count("execute") == 2


def test_several_statements_in_one_message_are_one_point_and_said_so(folder: Path) -> None:
    """They are one transaction of the server's; nobody can cut between them from outside."""
    program = "import psycopg\nconnection = psycopg.connect('', autocommit=True)\n"
    program += "connection.execute(\"insert into done values ('P-1') on conflict do nothing; select 1; select 2\")\n"
    report = crash_python(folder, program, faults=(Fault.CUT_AFTER,))
    found = next(result for result in report.results if result.trial.met.words.startswith("insert"))
    assert "3 statements in one message" in found.trial.met.place
    assert report.is_safe


def test_only_the_client_is_killed_if_asked(folder: Path) -> None:
    """The shell that started the client lives on, and takes its end for an error."""
    (folder / "job.sh").write_text(
        f"'{_bin()}/psql' -Xq -c \"insert into done values ('P-1') on conflict do nothing\" || echo survived >> said\n"
    )
    program = "import subprocess\nsubprocess.run(['sh', 'job.sh'])\n"
    report = crash_python(
        folder, program, faults=(Fault.KILL,), command={"kills_client_only": True}, rules={"files": ("said",)}
    )
    killed = [result for result in report.results if result.trial.met.words.startswith("insert")]
    assert {result.evidence.files for result in killed} == {("said",)}, "the shell wrote it after its client was killed"
    assert {result.exits[0] for result in killed} == {"exit 0"}


def test_rows_that_a_crash_takes_are_lost(folder: Path) -> None:
    """An unlogged table is empty after recovery: only the fault that crashes the server shows it."""
    schema = "create unlogged table loose (id text primary key); create table done (id text primary key);"
    script = "insert into loose values ('x') on conflict do nothing;\n"
    program = "select not exists (select from done) as todo \\gset\n\\if :todo\n" + script
    program += "insert into done values ('x');\n\\endif\n"
    report = crash_psql(folder, program, schema=schema, faults=(Fault.TERMINATE, Fault.CRASH))
    assert ("insert into done", "crash (after)", "LOST") in unsafe_of(report)
    assert {blow for _, blow, _ in unsafe_of(report)} <= {"crash (before)", "crash (after)"}


def test_a_prepared_transaction_that_nobody_ends_is_told(folder: Path) -> None:
    """It holds its locks for ever; the second run goes round it."""
    script = "select not exists (select from pg_prepared_xacts) as fresh \\gset\n\\if :fresh\nbegin;\n"
    script += "insert into ledger (payment_id, amount) values ('P-1', 1);\nprepare transaction 'x';\n"
    script += "commit prepared 'x';\n\\else\n\\quit\n\\endif\n"
    report = crash_psql(folder, script, faults=(Fault.CUT_BEFORE,), rules={"tables": frozenset({"ledger"})})
    left = [result for result in report.results if result.evidence.leftovers]
    assert [result.trial.met.words for result in left] == ["commit prepared 'x'"]
    assert left[0].verdict is Verdict.LOST


def test_a_program_that_hangs_after_a_fault_is_stuck_at_its_limit(folder: Path) -> None:
    """A session lock in a table: the second run waits for ever for a worker that is dead."""
    schema = "create table working (id integer primary key); create table done (id text primary key);"
    program = "import psycopg, time\nwith psycopg.connect('', autocommit=True) as c:\n"
    program += "    while not c.execute('insert into working values (1) on conflict do nothing').rowcount:\n"
    program += "        time.sleep(0.05)\n"
    program += "    c.execute(\"insert into done values ('P-1') on conflict do nothing\")\n"
    program += "    c.execute('delete from working')\n"
    report = crash_python(folder, program, schema=schema, faults=(Fault.KILL,), limit_s=1.5, reruns=1)
    stuck = {words.split()[0] for words, _, verdict in table_of(report) if verdict is Verdict.STUCK}
    assert stuck == {"insert", "delete"}
    assert {result.exits[-1] for result in report.unsafe} == {"ended by the time limit"}
    assert "does not end within the time limit" in report.unsafe[0].why


def _bin() -> Path:
    from pgonce.server import find_binaries

    return find_binaries().bin_dir


@pytest.mark.parametrize("jobs", [1, 2])
def test_two_servers_find_what_one_finds(folder: Path, jobs: int) -> None:
    """The points are shared out; the report is the same, in the order of the program."""
    script = "select not exists (select from done) as todo \\gset\n\\if :todo\n"
    script += "update balance set cents = cents + 7;\ninsert into done values ('x');\n\\endif\n"
    report = crash_psql(folder, script, faults=(Fault.CUT_AFTER, Fault.CUT_BEFORE), jobs=jobs)
    assert unsafe_of(report) == {
        ("update balance set", "cut-after", "DOUBLED"),
        ("insert into done", "cut-before", "DOUBLED"),
    }
    assert [result.trial.met.boundary.number for result in report.results] == sorted(
        result.trial.met.boundary.number for result in report.results
    )


def test_a_clock_in_the_setup_does_not_keep_two_servers_from_working(folder: Path) -> None:
    """Each of them has its own time of setup, and is compared with its own clean run."""
    schema = (
        SCHEMA
        + "create table installed (at timestamptz default clock_timestamp()); insert into installed default values;"
    )
    script = "insert into done select id from payment on conflict do nothing;\nupdate balance set cents = 7;\n"
    report = crash_psql(folder, script, schema=schema, faults=(Fault.CUT_AFTER, Fault.CUT_BEFORE), jobs=2)
    assert report.is_safe, report.sentence
    assert "installed" in report.baseline.compared


SOFT_REFERENCE = """
select not exists (select from done) as todo \\gset
\\if :todo
begin;
insert into run (what) values ('today') returning id as run_id \\gset
insert into booked select id, :run_id from payment;
insert into done values ('x');
commit;
\\endif
"""
RUNS = SCHEMA + "create table run (id bigint generated always as identity, what text);"


def test_a_generated_key_in_a_column_without_a_foreign_key_is_no_money(folder: Path) -> None:
    """After a rollback the next number is another one; that is found out before, and told."""
    schema = RUNS + "create table booked (payment_id text primary key, run_id bigint not null);"
    report = crash_psql(folder, SOFT_REFERENCE, schema=schema, faults=(Fault.CUT_BEFORE, Fault.SERIALIZATION))
    assert report.is_safe, report.sentence
    assert report.baseline.left_out == ("booked.run_id",)


def test_a_program_that_cannot_bear_other_numbers_is_compared_all_the_same(folder: Path) -> None:
    """Its numbers are as they come then, and it is failed at every point as any other."""
    schema = RUNS + "create table booked (payment_id text primary key, run_id bigint not null check (run_id < 100));"
    report = crash_psql(folder, SOFT_REFERENCE, schema=schema, faults=(Fault.CUT_AFTER,))
    assert report.baseline.left_out == ()
    assert {words.split()[0] for words, _, verdict in table_of(report) if verdict is Verdict.DOUBLED} == {"insert"}
