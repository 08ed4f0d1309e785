"""`pgonce db`: the schema, the look-over, and the embedded server, as a person meets them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faults.harness import wait_until
from migration.installing import COMMAND_S_MAX, argv, described, ended, environment, execute, pgonce, started
from pgonce import server as embedded
from pgonce.api import admin
from pgonce.db import drift
from pgonce.db.connect import without_password
from pgonce.errors import ConfigurationError
from server.processes import cleaned


def test_init_then_migrate_then_doctor(empty_database: str) -> None:
    """Each says what it did, and a second time that there was nothing to do; doctor finds nothing: exit 0."""
    steps = [pgonce("db", name, "--dsn", empty_database) for name in ("init", "init", "migrate", "doctor")]
    assert [step.returncode for step in steps] == [0, 0, 0, 0], steps
    nothing = "schema 'pgonce' is there at version 2; there was nothing to do\n"
    assert [step.stdout for step in steps[:3]] == [
        "schema 'pgonce' is at version 2; applied: 0001 initial, 0002 set_reference\n",
        nothing,
        nothing,
    ]
    assert "nothing has to be put right" in steps[3].stderr
    assert all("using the database" in step.stderr for step in steps)


def test_the_other_reference_is_asked_for_by_name(empty_database: str) -> None:
    """`--reference row` at init, back by migrate; init alone does not change it, and each says which is in force."""
    row, to_set = (("--dsn", empty_database, "--reference", kind) for kind in ("row", "set"))
    assert pgonce("db", "init", *row).stdout.endswith("effects refer to their events by: row\n")
    refused = pgonce("db", "init", *to_set)
    assert (refused.returncode, "pgonce db migrate --reference set" in refused.stderr) == (78, True)
    assert pgonce("db", "migrate", *to_set).stdout.endswith("effects refer to their events by: set\n")
    assert pgonce("db", "init", "--dsn", empty_database, "--reference", "none").returncode == 2
    assert "add constraint effect_event_fkey" in pgonce("db", "sql", "--since", "2", "--reference", "row").stdout


def test_json_has_stable_keys(empty_database: str) -> None:
    """What a program reads from init, migrate and doctor."""
    made = json.loads(pgonce("db", "init", "--dsn", empty_database, "--schema", "Mine", "--json", "-q").stdout)
    assert made.pop("database").startswith("database ")
    applied = ["0001 initial", "0002 set_reference"]
    assert made == {"schema": "Mine", "before": 0, "after": 2, "applied": applied, "reference": "set"}
    execute(empty_database, 'alter table "Mine".event add column extra integer')
    done = pgonce("db", "doctor", "--dsn", empty_database, "--schema", "Mine", "--json", "-q")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (3, "")
    assert set(found) == {"database", "schema", "server_version", "clean", "findings", "exit_code"}
    assert (found["clean"], found["exit_code"]) == (False, 3)
    assert {
        "check": "drift",
        "level": "problem",
        "subject": "column event.extra",
        "text": "column event.extra is not pgonce's: integer",
    } in found["findings"]


def test_doctor_prints_a_line_a_finding(database: str) -> None:
    """Not on a terminal the table is tab-separated lines: level, check, subject, what."""
    execute(database, "drop index pgonce.event_open_idx")
    done = pgonce("db", "doctor", "--dsn", database)
    assert done.returncode == 3
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines[0] == ["level", "check", "subject", "what"]
    assert ["problem", "drift", "index event.event_open_idx"] in [line[:3] for line in lines]
    assert "1 to be put right" in done.stderr


def test_doctor_on_a_database_without_schema_says_init(empty_database: str) -> None:
    """There is nothing to compare with: exit 78."""
    done = pgonce("db", "doctor", "--dsn", empty_database)
    assert done.returncode == 78
    assert "pgonce db init" in done.stderr


def test_sql_is_what_psql_can_apply(empty_database: str) -> None:
    """The command prints the SQL alone, and `db psql` applies it; both together make the schema."""
    printed = pgonce("db", "sql", "--schema", "Mine")
    assert (printed.returncode, printed.stdout, printed.stderr) == (0, admin.install_sql("Mine"), "")
    applied = subprocess.run(
        argv("db", "psql", "--dsn", empty_database, "--", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", "-"),
        input=printed.stdout,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        env=environment(),
    )
    assert applied.returncode == 0, applied.stderr
    assert described(empty_database, "Mine") == drift.expected()


def test_psql_takes_its_own_arguments_and_gives_its_own_exit_code(database: str) -> None:
    """Options that are not ours need no `--` before them."""
    done = pgonce("db", "psql", "--dsn", database, "-X", "-A", "-t", "-c", "select 6 * 7")
    assert (done.returncode, done.stdout) == (0, "42\n")
    wrong = pgonce("db", "psql", "--dsn", database, "-X", "-v", "ON_ERROR_STOP=1", "-c", "select nothing")
    assert wrong.returncode == 1
    assert 'column "nothing" does not exist' in wrong.stderr


def test_psql_uses_what_the_environment_names(database: str) -> None:
    """Without a dsn it is the same database as for every command."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    done = pgonce("db", "psql", "-X", "-A", "-t", "-c", "select current_database()", PGONCE_DATABASE_URL=database)
    assert done.stdout.strip() == name


def test_a_password_never_stands_in_the_arguments_of_psql(database: str) -> None:
    """It is handed over by the environment; psql's command line, which every user of the machine sees, has none."""
    dsn = make_conninfo(database, password="hush-hush")
    command = argv("db", "psql", "-X", "-q", "-c", "select pg_sleep(60)")
    psqls = "from pg_stat_activity where application_name = 'psql' and datname = current_database()"
    with (
        started(command, env={"PGONCE_DATABASE_URL": dsn}) as (process,),
        psycopg.connect(database, autocommit=True) as watcher,
    ):
        wait_until(lambda: watcher.execute(f"select {psqls}").rowcount == 1, "psql there", limit_s=COMMAND_S_MAX)
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _children(process.pid)]
        watcher.execute(f"select pg_terminate_backend(pid) {psqls}")
        done = ended([process])
    assert any(b"psql" in line for line in lines)
    assert not any(b"hush-hush" in line for line in lines)
    assert done[0][0] == 2, done


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_password_is_parted_from_the_connection_string() -> None:
    """URLs and key words alike; a key's password has no way to go and is refused."""
    assert without_password("postgresql://me:secret@db.example/shop?sslmode=require") == (
        "user=me dbname=shop host=db.example sslmode=require",
        "secret",
    )
    assert without_password("") == ("", None)
    assert without_password("service=shop") == ("service=shop", None)
    with pytest.raises(ConfigurationError, match="sslpassword"):
        without_password("host=a sslpassword=b")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An embedded server's data folder of its own; whatever a test does, its server is stopped afterwards."""
    with cleaned(tmp_path / "home") as folder:
        yield {"PGONCE_HOME": str(folder)}


def test_up_status_down(home: dict[str, str]) -> None:
    """The pinned server outlives its commands, has the schema, is named by its dsn, and stops when told."""
    before = json.loads(pgonce("db", "status", "--json", **home).stdout)
    assert (before["exists"], before["running"], before["pinned"]) == (False, False, False)
    up = pgonce("db", "up", **home)
    assert up.returncode == 0, up.stderr
    dsn = up.stdout.strip()
    assert "export PGONCE_DATABASE_URL=" in up.stderr
    status = json.loads(pgonce("db", "status", "--json", **home).stdout)
    assert (status["running"], status["pinned"], status["dsn"]) == (True, True, dsn)
    assert described(dsn) == drift.expected()
    exported = subprocess.run(
        ["sh", "-c", f"{up.stderr.rpartition('by name: ')[2]}\n{shlex.join(argv('db', 'doctor', '--json'))}"],
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        env=environment(),
    )
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["clean"]
    assert "running\tyes" in pgonce("db", "status", **home).stdout
    down = pgonce("db", "down", **home)
    assert (down.returncode, down.stdout) == (0, "the embedded server is down\n")
    assert not json.loads(pgonce("db", "status", "--json", **home).stdout)["running"]
    assert pgonce("db", "down", "--json", **home).stdout == '{"users": [], "running": false}\n'


def test_down_names_the_users_that_keep_the_server_up(home: dict[str, str]) -> None:
    """They are not cut off; with --now they are."""
    assert pgonce("db", "up", "--json", **home).returncode == 0
    with embedded.running(Path(home["PGONCE_HOME"])) as joined:
        down = pgonce("db", "down", **home)
        assert down.returncode == 0
        assert "stops when its users have ended" in down.stdout
        assert str(os.getpid()) in down.stdout
        assert execute(joined.dsn, "select 1") == [(1,)]
        now = pgonce("db", "down", "--now", "--json", **home)
        assert json.loads(now.stdout) == {"users": [], "running": False}
        with pytest.raises(psycopg.OperationalError):
            execute(joined.dsn, "select 1")


def test_ctrl_c_in_psql_cancels_its_query_and_not_the_command(database: str) -> None:
    """The signal goes to the whole foreground group; psql ends its script, and its exit code is the command's."""
    command = argv("db", "psql", "--dsn", database, "-X", "-q", "-f", "-")
    with started(command) as (process,), psycopg.connect(database, autocommit=True) as watcher:
        assert process.stdin is not None
        process.stdin.write("select pg_sleep(60);\nselect 'still ' || 'here';\n")
        process.stdin.flush()
        sleeping = "select from pg_stat_activity where query like 'select pg_sleep(60)%' and wait_event = 'PgSleep'"
        wait_until(lambda: watcher.execute(sleeping).rowcount == 1, "psql asleep", limit_s=COMMAND_S_MAX)
        os.killpg(process.pid, signal.SIGINT)
        code, out, err = ended([process])[0]
    assert "canceling statement due to user request" in err
    assert "KeyboardInterrupt" not in err
    assert (code, out) == (3, "")
