"""Folders that are odd, half-made, foreign, full or not ours: each works or says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgonce import server as embedded
from pgonce.errors import ConfigurationError
from pgonce.server import place as places
from pgonce.server import watch
from server.processes import Process, cleaned, gone, until

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def answers(home: Path) -> embedded.Server:
    with embedded.running(home) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
        return server


@pytest.mark.parametrize(
    "name",
    ["with space", "with, comma", 'it\'s "quoted"', "$HOME `id`", "back\\slash", "ünïcödé", "x" * 120],
    ids=["space", "comma", "quotes", "dollar", "backslash", "unicode", "long"],
)
def test_any_path_works_and_leaves_no_socket_folder_elsewhere(open_folder: Path, name: str) -> None:
    with cleaned(open_folder / name) as home:
        server = answers(home)
        assert server.pgdata == home / "pgdata"
        until(lambda: gone(server.pid))
        until(lambda: not watch.is_held(home / watch.WATCH))
        assert not server.socket_dir.exists()


def test_a_socket_folder_that_somebody_else_made_is_not_trusted(open_folder: Path) -> None:
    with cleaned(open_folder / ("x" * 120)) as home:
        server = answers(home)
        until(lambda: not watch.is_held(home / watch.WATCH))
        server.socket_dir.mkdir()
        server.socket_dir.chmod(0o777)
        try:
            with pytest.raises(ConfigurationError, match="0700"):
                answers(home)
        finally:
            server.socket_dir.rmdir()


def test_a_symbolic_link_leads_to_the_same_server(open_folder: Path) -> None:
    with cleaned(open_folder / "home") as home, embedded.running(home) as server:
        (open_folder / "link").symlink_to(home)
        with embedded.running(open_folder / "link") as again:
            assert again.pid == server.pid


def test_a_start_killed_while_the_cluster_was_made_is_done_again(home: Path, processes: Callable[..., Process]) -> None:
    process = processes(f"running(Path({str(home)!r}))")
    folder = places.locate(home).folder
    until(lambda: list(folder.glob("pgdata.new-*/global")))
    process.kill()
    assert not (folder / "pgdata").exists()
    answers(home)
    assert list(folder.glob("pgdata.new-*")) == []


@pytest.mark.parametrize("owner", ["nobody is left", "another program", "another server"])
def test_a_stale_pid_file_does_not_keep_the_server_from_starting(home: Path, owner: str) -> None:
    server = answers(home)
    until(lambda: gone(server.pid))
    with embedded.scratch() as other:
        ended = subprocess.Popen(["true"])
        ended.wait()
        pid = {"nobody is left": ended.pid, "another program": os.getpid(), "another server": other.postmaster_pid}
        file = server.pgdata / "postmaster.pid"
        file.write_text(f"{pid[owner]}\n{server.pgdata}\n1\n5432\n{server.socket_dir}\n\n0 0\nready\n")
        if os.geteuid() == 0:
            os.chown(file, server.pgdata.stat().st_uid, -1)
        assert not embedded.status(home).running
        answers(home)


def test_a_folder_of_another_major_release_is_refused_with_the_way_out(home: Path) -> None:
    server = answers(home)
    until(lambda: not watch.is_held(places.locate(home).folder / watch.WATCH))
    (server.pgdata / "PG_VERSION").write_text("14\n")
    with pytest.raises(ConfigurationError, match=r"made by PostgreSQL 14.*PGONCE_PG_BIN.*dump") as caught:
        answers(home)
    assert str(server.pgdata) in str(caught.value)


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is not a folder"):
        answers(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="PGONCE_HOME"):
        answers(tmp_path / "file" / "below")


def test_a_line_break_in_the_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"line break.*PGONCE_HOME"):
        answers(tmp_path / "two\nlines")


def test_a_folder_into_which_everybody_may_write_is_refused(open_folder: Path) -> None:
    open_folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="everybody may write"):
        answers(open_folder)


@root_only
def test_a_folder_of_somebody_else_is_refused(open_folder: Path) -> None:
    (open_folder / "home").mkdir()
    shutil.chown(open_folder / "home", "nobody")
    with pytest.raises(ConfigurationError, match=r"belongs to nobody, and you are root.*PGONCE_HOME"):
        answers(open_folder / "home")


@pytest.fixture
def small_disk(open_folder: Path) -> Iterator[Path]:
    """Yield a folder on a disk of its own with room for no cluster."""
    disk = open_folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("no disk may be mounted here")
    disk.chmod(0o755)
    yield disk
    subprocess.run(["umount", disk], check=True)


@root_only
def test_a_disk_too_small_for_a_cluster_is_told_and_left_clean(small_disk: Path) -> None:
    with cleaned(small_disk / "home") as home:
        with pytest.raises(ConfigurationError, match=r"(?s)is full: free some space") as caught:
            answers(home)
        assert str(home) in str(caught.value)
        assert list(home.glob("pgdata*")) == []
        subprocess.run(["mount", "-o", "remount,size=400m", small_disk], check=True)
        answers(home)


@root_only
def test_a_disk_without_any_room_is_told(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(bytes(30_000_000))
    with cleaned(small_disk / "home") as home, pytest.raises(ConfigurationError, match="space"):
        answers(home)


@root_only
def test_a_read_only_disk_is_told(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ConfigurationError, match=r"Read-only.*PGONCE_HOME"):
        answers(small_disk / "home")
