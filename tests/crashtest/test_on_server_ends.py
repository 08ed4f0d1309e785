"""However a test on the server of the original ends, nothing of it is left there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from crashtest.hosted import ours
from pgonce.crashtest import dropping, guest
from server.processes import gone, until


def test_a_tester_that_is_killed_while_the_original_is_cloned_leaves_nothing(shop: str, tmp_path: Path) -> None:
    """The server goes on with the clone for a while; the janitor does not go before that is over."""
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("create table large as select repeat('x', 1000) as v from generate_series(1, 100000)")
    tester = subprocess.Popen(
        [sys.executable, "-m", "pgonce", "crashtest", "--dsn", shop, "--on-server", "--empty-workdir", "--", "true"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with psycopg.connect(make_conninfo(shop, dbname="postgres"), autocommit=True) as connection:
            name = str(conninfo_to_dict(shop)["dbname"])
            active = "select pid from pg_stat_activity where state = 'active' and starts_with(query, 'create database')"
            active += " and query like %s"
            until(lambda: connection.execute(active, (f'%template "{name}"%',)).fetchone())
            janitor = janitor_of(tester.pid)
            tester.kill()
            tester.wait()
            until(lambda: gone(janitor))
            assert ours(shop) == []
            assert not connection.execute(active, (f'%template "{name}"%',)).fetchone()
    finally:
        tester.kill()
        tester.wait()
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute("drop table large")


def started(shop: str, project: Path) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Start a test whose program never ends; return it, with that program's id and working folder."""
    (project / "schema.sql").write_text("select 1")
    program = "import os, pathlib, psycopg, time\nwith psycopg.connect('') as c:\n    c.execute('select 1')\n"
    program += f"    note = pathlib.Path({str(project)!r}, 'told')\n"
    program += "    note.with_suffix('.new').write_text(f'{os.getpid()} {os.getcwd()}')\n"
    program += "    note.with_suffix('.new').rename(note)\n    time.sleep(1000)\n"
    (project / "sleeps.py").write_text(program)
    environment = os.environ | {"PGUSER": "nobody", "PGHOST": "192.0.2.1"}
    tester = subprocess.Popen(
        [sys.executable, "-m", "pgonce", "crashtest", "--dsn", shop, "--on-server", "--", sys.executable, "sleeps.py"],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    until((project / "told").exists)
    return tester, (project / "told").read_text().split()


def janitor_of(tester: int) -> int:
    """Return the process id of a test's janitor."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        if b"pgonce.crashtest.janitor" in words and int(parent) == tester:
            return int(process.name)
    raise AssertionError("there is no janitor")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tester_that_is_ended_leaves_nothing_on_the_server(shop: str, tmp_path: Path, number: int) -> None:
    """Program, folder, janitor and databases are gone soon after the tester, however it ended."""
    tester, (pid, work) = started(shop, tmp_path)
    try:
        janitor = janitor_of(tester.pid)
        assert len(ours(shop)) >= 3
        tester.send_signal(number)
        assert tester.wait(30) == (-9 if number == signal.SIGKILL else 128 + number)
        until(lambda: gone(int(pid)))
        until(lambda: gone(janitor))
        assert ours(shop) == []
        assert not Path(work).parent.parent.exists()
    finally:
        tester.kill()
        tester.wait()


def test_what_a_killed_janitor_left_the_next_start_drops_and_names_and_the_living_keep_theirs(
    shop: str, tmp_path: Path
) -> None:
    """A test that lives is known by its session; one that does not is cleared up after."""
    projects = [tmp_path / name for name in ("dead", "alive")]
    for project in projects:
        project.mkdir()
    alive, (pid, _) = started(shop, projects[1])
    of_alive = set(ours(shop))
    dead, (lost, work) = started(shop, projects[0])
    left = set(ours(shop)) - of_alive
    assert len(left) >= 3
    try:
        for process in (janitor_of(dead.pid), dead.pid):
            os.kill(process, signal.SIGKILL)
        dead.wait()
        until(lambda: gone(int(lost)))
        until(lambda: not any(connected(shop, name) for name in left))
        said: list[str] = []
        with psycopg.connect(shop, autocommit=True) as connection:
            tokens = [dropping.token_of(min(names)) for names in (of_alive, left)]
            assert [dropping.is_alive(connection, token) for token in tokens] == [True, False]
            guest.clear_up(connection, shop, said.append)
        assert said == [
            f"dropped what an earlier crash test, which was killed, had left on the server: {', '.join(sorted(left))}"
        ]
        assert set(ours(shop)) == of_alive
        assert not Path(work).parents[2].exists()
        assert not gone(int(pid)), "the test that lives goes on"
    finally:
        for tester in (alive, dead):
            tester.terminate()
            tester.wait()


def connected(dsn: str, name: str) -> bool:
    """Say whether anybody is connected to a database."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("select from pg_stat_activity where datname = %s", (name,)).fetchone() is not None
