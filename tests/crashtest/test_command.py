"""The command: exit codes, reports in every form, going on where it was stopped, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from crashtest.programs import GUARDED, INSERT_THEN_MARK, PSQL, SCHEMA
from server.processes import gone, until

ONE_PAYMENT = SCHEMA.replace(", ('P-2', 20)", "")
WRONG = "update balance set cents = cents + 7 where not exists (select from done);\ninsert into done values ('x')"
JOB = [PSQL, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "job.sql"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a schema, a wrong and a right program, and a script that adds twice."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "schema.sql").write_text(ONE_PAYMENT)
    (made / "wrong.py").write_text(INSERT_THEN_MARK)
    (made / "right.py").write_text(GUARDED)
    (made / "job.sql").write_text(f"{WRONG} on conflict do nothing;\n")
    return made


def run(project: Path, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``pgonce crashtest``."""
    return subprocess.run(
        [sys.executable, "-m", "pgonce", "crashtest", "--setup", "schema.sql", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env=os.environ | (environment or {}),
    )


def test_a_wrong_program_ends_with_3_and_says_where_why_and_what_to_do(project: Path) -> None:
    """The report names statement, place, rows, cure and how to see it again; the last line sums up."""
    done = run(
        project, "--fault", "cut-after", "--report", "out.html", "--junit", "out.xml", "--", sys.executable, "wrong.py"
    )
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "NOT SAFE (DOUBLED): SAFE at 3 of 4 points tried"
    told = done.stdout
    assert "DOUBLED at " in told
    assert "statement: insert into ledger (payment_id, amount) values ($1, $2)" in told
    assert "place: a transaction of its own (number 2 of its connection)" in told
    assert "+ amount=50, payment_id=P-1   (2 times, once after a clean run)" in told
    assert "cure: Commit the effect and the note" in told
    assert "left out, since two clean runs differ there: ledger.at" in told
    point = re.search(r"again: the same command with --only (\w+:cut-after)", told)
    assert point is not None
    again = run(project, "--only", point[1], "-q", "--", sys.executable, "wrong.py")
    assert again.returncode == 3
    assert again.stderr == ""
    assert "1 trials in" in again.stdout
    suites = ElementTree.parse(project / "out.xml").getroot()
    assert [suite.get("failures") for suite in suites] == ["1", "0"]
    failure = suites.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("type") == "DOUBLED"
    page = (project / "out.html").read_text()
    assert "<script" not in page
    assert "http" not in page
    _check_links(page)
    assert "amount=50, payment_id=P-1" in page
    assert sorted(path.name for path in project.iterdir()) == sorted(
        ["schema.sql", "wrong.py", "right.py", "job.sql", "out.html", "out.xml"]
    )


def _check_links(page: str) -> None:
    """Every link of the page leads to an anchor of the page, and every tag is closed."""
    ids: set[str] = set()
    targets: set[str] = set()
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            known = dict(attrs)
            ids.update(filter(None, [known.get("id")]))
            if tag == "a":
                targets.add((known["href"] or "").removeprefix("#"))
            if tag not in ("meta", "link"):
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Reader().feed(page)
    assert open_tags == []
    assert targets
    assert targets <= ids


def test_a_right_program_ends_with_0_and_json_says_everything(project: Path) -> None:
    """The keys are stable; each trial is in it."""
    done = run(project, "--fault", "cut-after", "--fault", "serialization", "--json", "--", sys.executable, "right.py")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["sentence"] == "SAFE at 6 of 6 points tried"
    assert told["safe"] is True
    assert told["isolated"] is True
    assert told["faults"] == {"cut-after": "SAFE", "serialization": "SAFE"}
    assert told["effect"] == ["done", "ledger"]
    assert {result["verdict"] for result in told["results"]} == {"SAFE"}
    commit = next(one for one in told["results"] if one["statement"] == "COMMIT" and one["fault"] == "cut-after")
    assert commit["exits"] == ["exit 1", "exit 0"]
    assert commit["place"] == "the COMMIT of transaction 2"


def test_what_cannot_be_tested_ends_with_70(project: Path) -> None:
    """Neither yes nor no, and on standard output nothing."""
    done = run(project, "--", "true")
    assert done.returncode == 70
    assert done.stdout == ""
    assert "did not connect" in done.stderr


def test_the_environment_of_the_caller_names_no_database_to_the_program(project: Path) -> None:
    """Variables that lead elsewhere are dropped, and --env hands the address over in any form."""
    misleading = {"PGHOST": "192.0.2.9", "PGSERVICE": "other", "STOCK_URL": "postgresql+psycopg://192.0.2.9/x"}
    program = "import os, psycopg, sys\nassert 'PGSERVICE' not in os.environ and 'STOCK_URL' not in os.environ\n"
    program += "assert os.environ['KEPT'] == 'yes' and os.getcwd() == os.environ['PWD']\n"
    program += "assert os.environ['HOME'].startswith(os.getcwd()) and os.environ['TMPDIR'].startswith(os.getcwd())\n"
    program += "with psycopg.connect(os.environ['OWN_URL'].replace('jdbc:', '')) as c:\n"
    program += "    c.execute(\"insert into done values ('x') on conflict do nothing\")\n"
    (project / "reads.py").write_text(program)
    chosen = ("--points", "1", "--fault", "cut-before", "--env", "OWN_URL=jdbc:{dsn}")
    done = run(project, *chosen, "--", sys.executable, "reads.py", environment=misleading | {"KEPT": "yes"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_configuration_file_is_filled_in(project: Path) -> None:
    """A program that reads its database's address from a file finds it there, at every run."""
    (project / "app.ini").write_text("[db]\nhost={host}\nport={port}\nuser={user}\ndbname={database}\nother={kept}\n")
    program = "import configparser, psycopg\nc = configparser.ConfigParser(); c.read('app.ini'); db = dict(c['db'])\n"
    program += "assert db.pop('other') == '{kept}'\nwith psycopg.connect(**db) as c:\n"
    program += "    c.execute(\"insert into done values ('x') on conflict do nothing\")\n"
    (project / "reads.py").write_text(program)
    chosen = ("--points", "1", "--fault", "cut-before", "--template", "app.ini", "--listen", "6543")
    done = run(project, *chosen, "--", sys.executable, "reads.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "{host}" in (project / "app.ini").read_text(), "the original stays as it is"


def test_a_test_that_was_stopped_goes_on_where_it_was(project: Path) -> None:
    """What was tried is read from the file; a line that was cut short is tried again; another command is refused."""
    chosen = ("--fault", "cut-after", "--resume", "tried.jsonl")
    first = run(project, *chosen, "-v", "--", *JOB)
    assert first.returncode == 3, first.stderr
    kept = (project / "tried.jsonl").read_text().splitlines()
    trials = first.stderr.count(":cut-after")
    assert len(kept) == 1 + trials
    (project / "tried.jsonl").write_text("\n".join(kept[:-1]) + "\n" + kept[-1][:50])
    second = run(project, *chosen, "-v", "--", *JOB)
    assert second.returncode == 3
    assert second.stderr.count(":cut-after") == 1
    assert [line for line in second.stdout.splitlines() if " trials in " not in line] == [
        line for line in first.stdout.splitlines() if " trials in " not in line
    ]
    other = run(project, *chosen, "--", "true")
    assert other.returncode in (70, 78)
    assert "the results of another command" in other.stderr or "did not connect" in other.stderr


SETUP_WITH_A_CLOCK = """
create table installed (at timestamptz not null default clock_timestamp(), chance float8 not null default random(),
                        cents integer not null);
insert into installed (cents) values (7);
create table seen (what text primary key, at timestamptz, cents integer);
"""


def test_a_set_up_with_a_clock_in_it_does_not_keep_a_test_from_going_on(project: Path) -> None:
    """What each set-up makes anew tells no two starts apart; everything else does, and is named."""
    schema = ONE_PAYMENT + SETUP_WITH_A_CLOCK
    (project / "schema.sql").write_text(schema)
    (project / "job.sql").write_text(
        "insert into seen select 'installed', at, cents from installed on conflict do nothing;\n"
        "update balance set cents = cents + 7 where not exists (select from done);\n"
        "insert into done values ('x') on conflict do nothing;\n"
    )
    chosen = ("--fault", "cut-after", "--resume", "tried.jsonl")
    first = run(project, *chosen, "-v", "--", *JOB)
    assert first.returncode == 3, first.stderr
    kept = (project / "tried.jsonl").read_text().splitlines()
    assert json.loads(kept[0])["moved"] == {"installed": ["at", "chance"], "seen": ["at"]}
    (project / "tried.jsonl").write_text("\n".join(kept[:-1]) + "\n")
    second = run(project, *chosen, "-v", "--", *JOB)
    assert second.returncode == 3, second.stderr
    assert second.stderr.count(":cut-after") == 1
    assert second.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    (project / "schema.sql").write_text(schema.replace("values (7)", "values (8)"))
    other_state = run(project, *chosen, "--", *JOB)
    assert other_state.returncode == 78
    assert "and of another state (table installed, seen: if its set-up" in other_state.stderr
    (project / "schema.sql").write_text(schema + "create index on seen (cents);")
    assert ", and of another schema;" in run(project, *chosen, "--", *JOB).stderr
    (project / "schema.sql").write_text(schema)
    (project / "job.sql").write_text((project / "job.sql").read_text() + "-- another program\n")
    assert (
        "of another working folder (a program of another content); remove" in run(project, *chosen, "--", *JOB).stderr
    )
    (project / "job.sql").write_text((project / "job.sql").read_text().replace("-- another program\n", ""))
    assert "of another way to compare" in run(project, *chosen, "--ignore", "payment", "--", *JOB).stderr


def test_a_file_that_cannot_be_written_is_told_before_anything_is_tested(project: Path) -> None:
    """Nobody waits for a report that has no place."""
    done = run(project, "--report", "no/such/folder/out.html", "--", *JOB)
    assert done.returncode == 78
    assert "cannot write 'no/such/folder/out.html'" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tester_that_is_ended_leaves_nothing_behind(project: Path, number: int) -> None:
    """Program, keeper, server and folder are gone soon after the tester, however it ended."""
    program = "import os, pathlib, psycopg, subprocess, time\n"
    program += "hidden = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    program += "with psycopg.connect('') as c:\n    c.execute('select 1')\n"
    program += f"    note = pathlib.Path({str(project)!r}, 'told')\n"
    program += "    note.with_suffix('.new').write_text(f'{os.getpid()} {hidden.pid} {os.getppid()} {os.getcwd()}')\n"
    program += "    note.with_suffix('.new').rename(note)\n    time.sleep(1000)\n"
    (project / "sleeps.py").write_text(program)
    tester = subprocess.Popen(
        [sys.executable, "-m", "pgonce", "crashtest", "--setup", "schema.sql", "--", sys.executable, "sleeps.py"],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until((project / "told").exists)
        *pids, work = (project / "told").read_text().split()
        assert Path(work).is_dir()
        tester.send_signal(number)
        assert tester.wait(30) == (-9 if number == signal.SIGKILL else 128 + number)
        for pid in pids:
            until(lambda pid=pid: gone(int(pid)))
        until(lambda: not Path(work).parent.parent.exists())
    finally:
        tester.kill()
        tester.wait()
