"""Throw-away servers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgonce import server as embedded
from pgonce.errors import ConfigurationError, Unreachable
from server.processes import Process, gone, until


def test_a_crash_keeps_what_was_committed_and_only_that() -> None:
    with embedded.scratch() as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("create table kept (n int)")
            connection.execute("insert into kept values (1)")
            connection.commit()
            connection.execute("insert into kept values (2)")
            server.crash()
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        with pytest.raises(Unreachable, match="is down"):
            _ = server.postmaster_pid
        server.start()
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("select n from kept").fetchall() == [(1,)]


def test_settings_hold_over_a_restart() -> None:
    with embedded.scratch(settings={"max_connections": "17"}) as server:
        before = server.postmaster_pid
        server.restart()
        server.start()
        assert server.postmaster_pid != before
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("show max_connections").fetchone() == ("17",)


def test_nothing_is_left_after_the_block_also_with_open_sessions(tmp_path: Path) -> None:
    with embedded.scratch(parent=tmp_path) as server:
        pid, folder = server.postmaster_pid, server.folder
        connection = psycopg.connect(server.dsn)
    connection.close()
    assert gone(pid)
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_its_settings_keep_it_from_starting() -> None:
    kept: list[Path] = []
    with (
        pytest.raises(Unreachable, match="no_such_setting") as caught,
        embedded.scratch(settings={"no_such_setting": "1"}),
    ):
        pass
    kept.append(Path(str(caught.value).split("'")[1]))
    assert not kept[0].exists()


def test_a_killed_user_leaves_neither_server_nor_folder(processes: Callable[..., Process]) -> None:
    process = processes("scratch()")
    pid, folder = process.server_pid, Path(process.told["folder"])
    assert folder.exists()
    process.kill()
    until(lambda: gone(pid))
    until(lambda: not folder.exists())


def test_a_user_killed_while_the_cluster_is_made_leaves_nothing(
    processes: Callable[..., Process], open_folder: Path
) -> None:
    process = processes(f"scratch(parent=Path({str(open_folder)!r}))")
    until(lambda: list(open_folder.glob("*/pgdata.new-*/global")))
    process.kill()
    until(lambda: list(open_folder.iterdir()) == [])


def test_tcp_only_when_asked_and_with_a_password() -> None:
    with embedded.scratch(tcp=True) as server:
        with psycopg.connect(server.tcp_dsn) as connection:
            row = connection.execute("select host(inet_server_addr())").fetchone()
            assert row == ("127.0.0.1",)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.tcp_dsn, password="wrong")
    with embedded.scratch() as server, pytest.raises(ConfigurationError, match="tcp=True"):
        _ = server.tcp_dsn


def test_two_at_once_do_not_meet() -> None:
    with embedded.scratch() as one, embedded.scratch() as other:
        assert one.postmaster_pid != other.postmaster_pid
        with psycopg.connect(one.dsn) as connection:
            connection.execute("create table here ()")
        with psycopg.connect(other.dsn) as connection:
            assert connection.execute("select to_regclass('here')").fetchone() == (None,)
        one.crash()
        os.kill(other.postmaster_pid, 0)


def test_a_forked_child_that_leaves_the_block_leaves_the_server_alone() -> None:
    script = """
import os, sys, psycopg
from pgonce import server
with server.scratch() as used:
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    with psycopg.connect(used.dsn) as connection:
        print(connection.execute("select 1").fetchone())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("(1,)\n", 0), done.stderr
