"""The command `pgonce lab`: what it prints, how it ends, and what it leaves behind when it is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lab.test_scenarios import EXPERIMENT, FURTHER
from pgonce import lab
from pgonce.lab import envfile
from pgonce.server import place as places
from pgonce.server import watch
from server.processes import gone, until

pytestmark = pytest.mark.xdist_group("lab")

COMMAND_S_MAX = 120.0


def command(desk: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `pgonce lab` in the desk's folder to its end."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pgonce", "lab", *words],
        cwd=desk,
        env=os.environ | extra,
        text=True,
        capture_output=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )


@pytest.fixture
def started(desk: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of the test; none survives it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(desk: Path, started: list[subprocess.Popen[str]], *words: str, **extra: str) -> subprocess.Popen[str]:
    """Start `pgonce lab` with its output at hand."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "pgonce", "lab", *words],
        cwd=desk,
        env=os.environ | extra,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started.append(process)
    return process


def test_one_command_does_everything_whatever_the_user_has_set(desk: Path) -> None:
    """A throw-away lab, the experiment to the letter on stdout, and nothing else there; exit 0."""
    misled = dict.fromkeys(envfile.MISLEADING, "misleading") | {"PGONCE_PG_BIN": "/usr/lib/postgresql/15/bin"}
    done = command(desk, "run", "experiment", **misled, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert (done.returncode, done.stdout) == (0, EXPERIMENT), done.stderr
    assert list(desk.iterdir()) == []


def test_all_scenarios_are_played_when_none_is_named(desk: Path) -> None:
    """Every line of the right workers says exact; the wrong ones end with 3, and every line says what is wrong."""
    right = command(desk, "run")
    assert right.returncode == 0, right.stderr
    lines = right.stdout.splitlines()
    assert "\n".join(lines[:6]) + "\n" == EXPERIMENT
    assert all(one.endswith(": exact") for one in lines[6:])
    wrong = command(desk, "run", "--wrong", "-q")
    assert (wrong.returncode, wrong.stderr) == (3, "")
    assert all(re.search(r": WRONG: \d+ cents (too many|missing)$", one) for one in wrong.stdout.splitlines())
    names = [scenario.name for scenario in FURTHER]
    assert list(dict.fromkeys(one.split(":")[0] for one in lines[6:])) == names
    assert list(dict.fromkeys(one.split(" ")[0] for one in wrong.stdout.splitlines())) == names


def test_step_by_step(desk: Path) -> None:
    """Up, seed, whoami, versions, run in the same lab, clean; each says what it did."""
    up = command(desk, "up")
    assert up.returncode == 0, up.stderr
    folder = envfile.read(desk / "lab.env")
    assert up.stdout == f"the lab is up in {folder}\n"
    assert command(desk, "seed").stdout == "wiki_lab.orders: 1000 made-up orders\n"
    assert f"socket_folder\t{folder}\n" in command(desk, "whoami").stdout
    assert "postgresql\t18.6 (180006)\n" in command(desk, "versions").stdout
    ran = command(desk, "run", "sum-once", "check-then-act")
    assert (ran.returncode, len(ran.stdout.splitlines())) == (0, 2)
    assert "throw-away" not in ran.stderr
    clean = command(desk, "clean")
    assert (clean.returncode, clean.stdout) == (0, f"the lab in {folder} is stopped and removed\n")
    again = command(desk, "clean")
    assert (again.returncode, again.stdout) == (0, "there is no lab here\n")


def test_a_lab_that_is_up_is_not_crashed_under_its_user(desk: Path) -> None:
    """The scenarios that stop a server are played in a throw-away lab; a session in the other one goes on."""
    command(desk, "up")
    found = lab.find({})
    assert found is not None
    with psycopg.connect(found.dsn("lab-test")) as user:
        user.execute("create table mine (n integer)")
        done = command(desk, "run", "crash", "lost-commits", "sum-once")
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)
        assert done.stderr.count("a throw-away server") == 1
        user.execute("insert into mine values (1)")


def test_seeding_says_what_stands_in_its_way(desk: Path) -> None:
    """A transaction in somebody's psql, and a table that refers to the orders: a sentence each, no traceback."""
    command(desk, "up")
    command(desk, "seed")
    found = lab.find({})
    assert found is not None
    with psycopg.connect(found.dsn("lab-test")) as user:
        user.execute("select from wiki_lab.orders limit 1")
        locked = command(desk, "seed")
        assert (locked.returncode, "locked by another session" in locked.stderr) == (75, True)
        user.execute("create table mine (order_id integer references wiki_lab.orders)")
    referred = command(desk, "seed")
    assert (referred.returncode, "Drop that first" in referred.stderr) == (78, True)


@pytest.mark.parametrize("word", ["seed", "whoami", "versions"])
def test_what_needs_a_lab_says_how_to_get_one(desk: Path, word: str) -> None:
    """Exit 78, configuration."""
    done = command(desk, word)
    assert done.returncode == 78
    assert "Start one with `pgonce lab up`" in done.stderr


@pytest.mark.parametrize("words", [("run", "zombi"), ("run", "--wrong", "experiment"), ("up", "--dirr", "x")])
def test_what_does_not_exist_is_a_matter_of_usage(desk: Path, words: tuple[str, ...]) -> None:
    """Exit 2, before any server is made."""
    assert command(desk, *words).returncode == 2


def test_documents(desk: Path) -> None:
    """--json: one document each, with stable keys, and nothing else on stdout."""
    up = json.loads(command(desk, "up", "--json").stdout)
    assert set(up) == {"folder", "dsn", "pid"}
    assert json.loads(command(desk, "seed", "--json").stdout) == {"table": "wiki_lab.orders", "rows": 1000}
    assert json.loads(command(desk, "whoami", "--json").stdout)["socket_folder"] == up["folder"]
    assert json.loads(command(desk, "versions", "--json").stdout)["postgresql"] == "18.6 (180006)"
    ran = json.loads(command(desk, "run", "swallowed", "--wrong", "--json").stdout)
    [one] = ran["scenarios"]
    assert (one["name"], one["wrong"], one["exact"], one["cents"], one["cents_right"]) == (
        *("swallowed", True, False),
        *([0], [100]),
    )
    assert ran["inconclusive"] == []
    assert json.loads(command(desk, "clean", "--json").stdout) == {"removed": up["folder"]}
    assert json.loads(command(desk, "clean", "--json").stdout) == {"removed": None}
    names = [one["name"] for one in json.loads(command(desk, "scenarios", "--json").stdout)]
    assert names == [scenario.name for scenario in lab.SCENARIOS]


def home_of(folder: Path) -> Path:
    """Return where a lab's data lie: in its folder, but for root."""
    return lab.home._place(folder, places.server_account()).folder


def throw_away_folder(process: subprocess.Popen[str]) -> Path:
    """Wait until a `lab run` says where its server is."""
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"throw-away server, PostgreSQL 18\.6, in (/\S+)", line)
    assert found is not None, line
    return Path(found[1])


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)],
    ids=["SIGKILL", "Ctrl-C", "SIGTERM"],
)
@pytest.mark.parametrize("scenario", ["experiment", "lost-commits"])
def test_a_killed_run_leaves_no_server(
    desk: Path, started: list[subprocess.Popen[str]], number: signal.Signals, code: int, scenario: str
) -> None:
    """In the middle of the experiment, and in the one that starts and stops the server."""
    process = start(desk, started, "run", scenario)
    folder = throw_away_folder(process)
    home = home_of(folder)
    pid = watch.postmaster_pid(home / "pgdata")
    assert pid is not None
    if scenario == "experiment":
        assert process.stdout is not None
        assert process.stdout.readline().startswith("before_write")
    else:
        until(lambda: (home / "pgdata.copy").exists() or process.poll() is not None)
    process.send_signal(number)
    assert process.wait(COMMAND_S_MAX) in (code, 0 if scenario == "lost-commits" else code)
    until(lambda: gone(pid) and not folder.exists() and not home.exists())
    assert not watch.is_up(home)


@pytest.mark.parametrize("moment", ["file", "folder", "initdb", "server"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"])
def test_a_killed_up_can_be_cleaned(
    desk: Path, started: list[subprocess.Popen[str]], moment: str, number: signal.Signals
) -> None:
    """At whatever moment: Ctrl-C leaves nothing, after SIGKILL `lab clean` leaves nothing."""
    process = start(desk, started, "up")
    until(lambda: (desk / "lab.env").exists() and envfile_is_whole(desk))
    folder = envfile.read(desk / "lab.env")
    assert folder is not None
    home = home_of(folder)
    seen = {
        "file": lambda: True,
        "folder": folder.exists,
        "initdb": lambda: list(home.glob("pgdata.new-*")) or (home / "pgdata").exists(),
        "server": lambda: watch.postmaster_pid(home / "pgdata") is not None or process.poll() is not None,
    }
    until(seen[moment])
    process.send_signal(number)
    code = process.wait(COMMAND_S_MAX)
    if number == signal.SIGINT and code == 130:
        assert list(desk.iterdir()) == []
        assert not folder.exists()
    clean = command(desk, "clean")
    assert clean.returncode == 0, clean.stderr
    until(lambda: not folder.exists() and not home.exists())
    assert list(desk.iterdir()) == []
    assert not watch.is_up(home)
    assert list(folder.parent.glob(f"{folder.name}*")) == []


def envfile_is_whole(desk: Path) -> bool:
    """Say whether the file was written to its end."""
    return "unset PSQL_WATCH_PAGER" in (desk / "lab.env").read_text()
