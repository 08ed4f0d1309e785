"""One server for many processes: it comes with the first and goes after the last."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgonce import server as embedded
from pgonce.server import place as places
from pgonce.server import users, watch
from server.processes import Process, gone, until

Start = Callable[..., Process]


def one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_it_starts_in_an_empty_home_and_is_durable(home: Path) -> None:
    with embedded.running(home) as server:
        asked = "fsync synchronous_commit full_page_writes data_checksums listen_addresses lc_messages max_wal_size"
        found = {name: one(server.dsn, f"show {name}") for name in asked.split()}
        assert found == {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "data_checksums": "on",
            "listen_addresses": "",
            "lc_messages": "C",
            "max_wal_size": "2GB",
        }
        collation = "select datcollate || ' ' || pg_encoding_to_char(encoding) from pg_database"
        assert one(server.dsn, f"{collation} where datname = current_database()") == "C UTF8"
        assert server.pgdata.stat().st_mode & 0o777 == 0o700
        assert server.socket_dir.stat().st_mode & 0o777 == 0o700


def test_data_outlive_the_server(home: Path) -> None:
    with embedded.running(home) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("create table kept as select 42 as n")
    until(lambda: not embedded.status(home).running)
    with embedded.running(home) as server:
        assert one(server.dsn, "select n from kept") == 42


def test_the_default_home_is_taken_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGONCE_HOME", str(home))
    with embedded.running() as server:
        assert server.data_dir == home
        assert embedded.status().pid == server.pid


def test_the_environment_of_another_server_is_not_followed(home: Path, processes: Start) -> None:
    """PGHOSTADDR and the like would lead libpq to somebody's production."""
    hostile = {"PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGOPTIONS": "-c search_path=other"}
    hostile |= {"PGTARGETSESSIONATTRS": "read-only", "PGDATABASE": "other", "PGUSER": "other", "PGDATA": "/nowhere"}
    process = processes(f"running(Path({str(home)!r}))", environment=hostile)
    assert one(process.told["dsn"], "select current_user || current_database()") == "pgoncepgonce"


def test_the_end_of_the_first_user_leaves_the_second_its_server(home: Path, processes: Start) -> None:
    first = processes(f"running(Path({str(home)!r}))")
    assert first.told
    second = processes(f"running(Path({str(home)!r}))")
    assert second.server_pid == first.server_pid
    with psycopg.connect(second.told["dsn"], autocommit=True) as session:
        first.leave()
        until(lambda: len(embedded.status(home).users) == 1)
        watcher_looks_again(home)
        assert session.execute("select 1").fetchone() == (1,)
    second.leave()
    until(lambda: gone(second.server_pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_last_user_stops_the_server(home: Path, processes: Start, number: int) -> None:
    process = processes(f"running(Path({str(home)!r}))")
    pid = process.server_pid
    process.kill(number)
    killed_at = time.monotonic()
    until(lambda: gone(pid))
    assert time.monotonic() - killed_at < 5.0
    until(lambda: not watch.is_held(places.locate(home).folder / watch.WATCH))
    assert embedded.status(home).users == ()


def test_who_joins_before_the_stop_keeps_the_server(home: Path) -> None:
    """The watcher decided to stop, a user joins under the control lock: the watcher must look again."""
    place = places.locate(home)
    with embedded.running(home) as server:
        pid = server.pid
        control = watch.open_lock(place.folder / watch.CONTROL)
        assert watch.try_lock(control)
    for _ in range(2):  # it would stop now, but for the lock that we hold
        watcher_looks_again(home, seconds=watch.LINGER_S)
    with users.user_of(place):
        os.close(control)
        watcher_looks_again(home)
        assert embedded.status(home).pid == pid
        assert one(server.dsn, "select 1") == 1
    until(lambda: gone(pid))


def test_joining_at_the_moment_of_the_stop_always_finds_a_server(home: Path) -> None:
    """Several processes come and go around the time when the server stops; each gets its answer each time."""
    script = """
import random, sys, time, psycopg
from pathlib import Path
from pgonce import server
dice = random.Random(sys.argv[2])
for turn in range(8):
    with server.running(Path(sys.argv[1])) as used, psycopg.connect(used.dsn) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    time.sleep(0.5 + dice.random() * 0.2)
"""
    argv = [sys.executable, "-W", "error", "-c", script, str(home)]
    both = [subprocess.Popen([*argv, str(seed)], stderr=subprocess.PIPE, text=True) for seed in range(2)]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said


def test_a_pinned_server_stays_without_users_and_goes_with_its_pin(home: Path) -> None:
    server = embedded.pin(home)
    watcher_looks_again(home, seconds=watch.LINGER_S)
    assert embedded.status(home).pid == server.pid
    assert embedded.status(home).pinned
    assert embedded.unpin(home) == ()
    assert gone(server.pid)
    assert not embedded.status(home).pinned
    assert embedded.unpin(home) == ()


def test_unpin_names_the_users_that_keep_the_server_up(home: Path, processes: Start) -> None:
    process = processes(f"running(Path({str(home)!r}))")
    assert embedded.pin(home).pid == process.server_pid
    assert embedded.unpin(home) == (f"{process.popen.pid} -c",)
    assert not gone(process.server_pid)
    assert embedded.unpin(home, now=True) == (f"{process.popen.pid} -c",)
    assert gone(process.server_pid)


def test_ctrl_c_reaches_neither_server_nor_watcher(home: Path, processes: Start) -> None:
    process = processes(f"running(Path({str(home)!r}))", own_session=True)
    server = embedded.pin(home)
    watcher = watcher_of(places.locate(home).folder)
    assert {os.getsid(server.pid), os.getsid(watcher)}.isdisjoint({process.popen.pid, os.getsid(0)})
    os.killpg(process.popen.pid, signal.SIGINT)
    process.popen.wait()
    watcher_looks_again(home)
    assert not gone(watcher)
    assert embedded.status(home).pid == server.pid


def test_a_killed_watcher_is_replaced_by_the_next_user(home: Path) -> None:
    with embedded.running(home) as server:
        lock = places.locate(home).folder / watch.WATCH
        os.kill(watcher_of(lock.parent), signal.SIGKILL)
        until(lambda: not watch.is_held(lock))
        with embedded.running(home) as again:
            assert again.pid == server.pid
            assert watch.is_held(lock)
    until(lambda: gone(server.pid))


def test_a_server_that_crashed_is_started_again_with_its_data(home: Path) -> None:
    with embedded.running(home) as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("create table kept as select 42 as n")
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: gone(server.pid))
        with embedded.running(home) as again:
            assert again.pid != server.pid
            assert one(again.dsn, "select n from kept") == 42


def test_a_folder_deleted_under_its_server_ends_the_server(open_folder: Path, processes: Start) -> None:
    """The socket folder, which lies elsewhere for this long path, goes too."""
    home = open_folder / ("x" * 120)
    process = processes(f"running(Path({str(home)!r}))")
    pid, sockets = process.server_pid, Path(process.told["socket_dir"])
    watcher = watcher_of(home)
    watcher_looks_again(home)
    subprocess.run(["rm", "-rf", home], check=True)
    until(lambda: gone(pid) and gone(watcher))
    assert not sockets.exists()


def watcher_looks_again(home: Path, *, seconds: float = 0.0) -> None:
    """Let the watcher look for users at least once more: its own waits are the only clock it has."""
    time.sleep(seconds + 3 * watch.POLL_S)


def test_the_watcher_looks_again_under_the_lock(home: Path) -> None:
    """A user who joins between the watcher's look and its lock is seen: the server is never stopped under a user."""
    place = places.Place(home, None)
    places.make(place)
    os.close(watch.open_lock(home / watch.CONTROL))
    joined = contextlib.ExitStack()
    users_at_stop: list[int] = []

    class Interrupted(watch.Watcher):
        looks = 0

        def unused(self) -> bool:
            answer = super().unused()
            self.looks += 1
            if self.looks == 1:
                joined.enter_context(users.user_of(place))
            if self.looks == 4:
                joined.close()
            return answer

        def retire(self) -> None:
            users_at_stop.append(len(watch.live_users(home)))

    with joined:
        Interrupted(home, scratch=True, watch_lock=-1).run()
    assert users_at_stop == [0]


def watcher_of(folder: Path) -> int:
    """Return the process id of the watcher, which it writes when it is ready to watch."""
    until((folder / watch.WATCH).read_text)
    return int((folder / watch.WATCH).read_text())
