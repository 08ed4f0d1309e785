"""What is not ours is not touched: other folders, servers and files, and what another account could have changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.conftest import ask
from pgonce import lab
from pgonce.errors import ConfigurationError
from pgonce.lab import envfile, marker

pytestmark = pytest.mark.xdist_group("lab")


def refused(environment: dict[str, str], *, why: str) -> None:
    """Cleaning and using are refused for this reason."""
    for call in (lab.clean, lab.find):
        with pytest.raises(ConfigurationError, match=why):
            call(environment)


def test_a_folder_without_the_marker_is_not_touched(desk: Path, short: Path) -> None:
    """Named by lab.env or by LAB_DIR, empty or not."""
    (short / "photos").mkdir()
    refused({"LAB_DIR": str(short / "photos")}, why=r"no marker \.wiki-lab")
    (short / "photos" / "one.jpg").write_text("")
    envfile.write(desk / "lab.env", short / "photos", short / "bin", "0123456789abcdef")
    refused({}, why=r"no marker \.wiki-lab")
    assert (short / "photos" / "one.jpg").exists()
    (desk / "lab.env").unlink()


def test_the_marker_of_another_folder_does_not_count(desk: Path) -> None:
    """A copy of a lab is not a lab."""
    made = lab.up()
    copy = made.folder.with_name(made.folder.name + "-copy")
    shutil.copytree(
        made.folder, copy, symlinks=True, ignore=lambda _, names: [name for name in names if name.startswith(".s.")]
    )
    try:
        (desk / "lab.env").rename(desk / "kept")
        refused({"LAB_DIR": str(copy)}, why="written for another folder")
        assert ask(made, "select 1") == 1
    finally:
        shutil.rmtree(copy)
        (desk / "kept").rename(desk / "lab.env")


def test_a_lab_that_points_to_another_server_is_not_stopped(desk: Path, short: Path) -> None:
    """Neither by a link nor by a copied pid file."""
    made = lab.up()
    trap = short / "trap"
    for plant in (
        lambda: (trap / "pgdata").symlink_to(made.server.pgdata),
        lambda: shutil.copytree(made.server.pgdata, trap / "pgdata", ignore=lambda *_: ["base", "pg_wal", "global"]),
    ):
        trap.mkdir(mode=0o700)
        marker.write(trap, trap, Path(os.devnull))
        plant()
        (desk / "lab.env").rename(desk / "kept")
        if os.geteuid() == 0:  # what lies in the folder of root's socket is not even looked at
            assert lab.clean({"LAB_DIR": str(trap)}) == trap
        else:
            refused({"LAB_DIR": str(trap)}, why="another place|another folder")
            shutil.rmtree(trap)
        (desk / "kept").rename(desk / "lab.env")
        assert ask(made, "select 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_lab_of_another_user_is_not_touched(desk: Path, short: Path) -> None:
    """The marker's owner is whoever called `lab up`."""
    (short / "theirs").mkdir(mode=0o700)
    marker.write(short / "theirs", short / "theirs", Path(os.devnull))
    os.chown(short / "theirs" / ".wiki-lab", 12345, 12345)
    refused({"LAB_DIR": str(short / "theirs")}, why="another user's")
    assert (short / "theirs" / ".wiki-lab").exists()


def test_a_file_that_is_not_ours_is_not_overwritten_or_removed(desk: Path) -> None:
    """Somebody else's lab.env."""
    (desk / "lab.env").write_text("export GREETING='hello'\n")
    with pytest.raises(ConfigurationError, match="is there already"):
        lab.up()
    refused({}, why="not a file of pgonce's lab")
    assert (desk / "lab.env").read_text() == "export GREETING='hello'\n"
    (desk / "lab.env").unlink()


def test_a_link_is_not_followed(desk: Path, short: Path) -> None:
    """A LAB_DIR that is a link to a lab, and a lab.env that is a link to another file."""
    made = lab.up()
    (short / "link").symlink_to(made.folder)
    (desk / "lab.env").rename(desk / "kept")
    refused({"LAB_DIR": str(short / "link")}, why="not one that a lab gets")
    (desk / "lab.env").symlink_to(short / "letter")
    with pytest.raises(ConfigurationError):
        lab.up()
    assert not (short / "letter").exists()
    (desk / "lab.env").unlink()
    (desk / "kept").rename(desk / "lab.env")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's server has the user's own rights")
def test_roots_lab_trusts_nothing_that_its_servers_account_can_change(desk: Path, short: Path) -> None:
    """Programs, locks and the way to the server lie where only root may write."""
    made = lab.up()
    planted = short / "ran"
    script = f"""set -e
    cd {made.folder}
    mkdir -p bin && printf '#!/bin/sh\ntouch {planted}\n' >bin/psql && chmod 755 bin/psql
    for name in watch.lock control.lock socket pinned users; do ln -s {short}/victim $name; done
    ! touch {made.home}/planted 2>/dev/null
    ! mv {made.home}/bin {made.home}/moved 2>/dev/null"""
    (short / "victim").write_text("mine")
    account = made.server.pgdata.stat()
    done = subprocess.run(
        ["sh", "-c", script],
        user=account.st_uid,
        group=account.st_gid,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lab.versions(made)
    lab.whoami(made)
    assert lab.find({}) is not None
    assert lab.clean({}) == made.folder
    assert not planted.exists()
    assert (short / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    "text",
    [f"export LAB_DIR='{folder}'\n".encode() for folder in ("/tmp/\0x", "relative", "/tmp/" + "x" * 3000)],
    ids=["NUL", "relative", "long"],
)
def test_a_file_with_a_strange_folder_is_not_ours(desk: Path, text: bytes) -> None:
    """And neither is something that is no file: it is not waited for."""
    (desk / "lab.env").write_bytes(text)
    refused({}, why="not a file of pgonce's lab")
    (desk / "lab.env").unlink()
    os.mkfifo(desk / "lab.env")
    refused({}, why="not a regular file")
    (desk / "lab.env").unlink()
    (desk / "lab.env").mkdir()
    refused({}, why="cannot be read|not a regular file")
    (desk / "lab.env").rmdir()
