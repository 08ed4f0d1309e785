"""Labs that fail or are killed while they are made, used or removed: nothing is left, or `lab clean` leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.conftest import ask
from pgonce import lab
from pgonce.errors import ConfigurationError, Unreachable
from pgonce.lab import envfile, home, marker
from pgonce.server import cluster, watch
from pgonce.server import place as places
from server.processes import gone, until

pytestmark = pytest.mark.xdist_group("lab")


@pytest.mark.parametrize(
    ("room", "name"),
    [(marker, "write"), (cluster, "build"), (cluster, "start"), (home, "_make_schema"), (cluster, "spawn")],
    ids=["marker", "initdb", "start", "schema", "watcher"],
)
@pytest.mark.parametrize("how", [KeyboardInterrupt(), OSError(28, "No space left on device"), Unreachable("planted")])
def test_a_lab_that_fails_while_it_is_made_leaves_nothing(
    desk: Path, short: Path, monkeypatch: pytest.MonkeyPatch, room: object, name: str, how: BaseException
) -> None:
    """At each step, by Ctrl-C, a full disk, or a server that does not come up."""

    def fail(*_: object, **__: object) -> None:
        raise how

    with monkeypatch.context() as patch:
        patch.setattr(room, name, fail)
        with pytest.raises((type(how), ConfigurationError)):
            lab.up(short / "lab")
    assert list(desk.iterdir()) == []
    assert list(short.iterdir()) == []


def test_a_lab_whose_file_was_taken_away_meanwhile_is_removed(
    desk: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `lab clean` beside a `lab up`: no server is left that nobody can find."""
    make = home._make_schema
    monkeypatch.setattr(home, "_make_schema", lambda one: ((desk / "lab.env").unlink(), make(one)))
    with pytest.raises(ConfigurationError, match="taken away"):
        lab.up(short / "lab")
    assert list(short.iterdir()) == []


def test_a_half_made_lab_is_named_and_can_be_cleaned(desk: Path, short: Path) -> None:
    """What a SIGKILL leaves at any moment: the file alone, an unborn folder, a folder without a cluster."""
    folder = short / "lab"
    nonce = "0123456789abcdef"
    unborn = short / f"lab.{nonce}"
    moments: list[Callable[[], object]] = [
        lambda: None,
        lambda: unborn.mkdir(mode=0o700),
        lambda: (unborn.mkdir(mode=0o700), marker.write(unborn, folder, desk / "lab.env")),
        lambda: (folder.mkdir(mode=0o700), marker.write(folder, folder, desk / "lab.env")),
    ]
    for moment in moments:
        envfile.write(desk / "lab.env", folder, folder / "bin", nonce)
        moment()
        if folder.exists():
            with pytest.raises(ConfigurationError, match=r"has no data.*pgonce lab clean"):
                lab.find({})
        lab.clean({})
        assert list(desk.iterdir()) == []
        assert list(short.iterdir()) == []


def test_a_lab_removed_by_hand_takes_its_server_along(desk: Path) -> None:
    """`rm -r` of the folder: the watcher ends the server (root's lies elsewhere), and clean removes what is left."""
    made = lab.up()
    pid = made.server.postmaster_pid
    shutil.rmtree(made.folder, ignore_errors=True)
    shutil.rmtree(made.folder, ignore_errors=True)
    if os.geteuid() != 0:
        until(lambda: gone(pid))
    with pytest.raises(ConfigurationError, match=r"which is gone.*pgonce lab clean"):
        lab.find({})
    assert lab.clean({}) == made.folder
    until(lambda: gone(pid))
    assert list(desk.iterdir()) == []
    assert not made.home.exists()


def test_a_failing_up_touches_nothing_that_was_there(desk: Path, short: Path, tmp_path: Path) -> None:
    """Two at once on one folder: the second is refused, and the first one's lab goes on."""
    first = lab.up(short / "lab")
    other = tmp_path / "other"
    other.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "_chosen", lambda *_: short / "lab")  # it looked before the first one was there
        with pytest.raises(ConfigurationError):
            lab.up(short / "lab", env_file=other / "lab.env")
    assert ask(first, "select 1") == 1
    assert list(other.iterdir()) == []
    assert sorted(path.name for path in short.iterdir()) == ["lab"]


def test_a_clean_that_is_interrupted_can_be_done_again(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that leads to the lab goes last."""
    made = lab.up()
    for step in ("_stop", "_sockets"):
        with monkeypatch.context() as patch:

            def interrupted(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(home, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                lab.clean({})
        assert (desk / "lab.env").exists()
    assert lab.clean({}) == made.folder
    assert list(desk.iterdir()) == []


def test_an_empty_file_is_what_a_killed_up_leaves(desk: Path) -> None:
    """`up` refuses it, and `clean` removes it."""
    (desk / "lab.env").touch()
    with pytest.raises(ConfigurationError, match="pgonce lab clean"):
        lab.up()
    assert lab.clean({}) is None
    assert list(desk.iterdir()) == []


def test_a_lab_that_was_killed_before_its_pin_is_finished_when_it_is_used(desk: Path) -> None:
    """Else it would go down half a second after its next user."""
    made = lab.up()
    (made.home / watch.PINNED).unlink()
    assert lab.find({}) is not None
    assert (made.home / watch.PINNED).exists()


def test_a_program_that_is_interrupted_ends_with_all_it_has_started(tmp_path: Path) -> None:
    """initdb starts a server of its own, which would go on and keep its shared memory."""
    script = f"sleep 100 & echo $! >{tmp_path}/pid; wait"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "COMMAND_S_MAX", 0.5)
        with pytest.raises(subprocess.TimeoutExpired):
            places.run(["/bin/sh", "-c", script], None)
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount")
def test_a_full_disk_is_named_and_leaves_nothing(desk: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on a disk that is too small for a cluster."""
    disk = short / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("this machine does not let us mount a small disk")
    try:
        disk.chmod(0o755)
        monkeypatch.setattr(places, "ROOTS_BASE", disk / "root")
        monkeypatch.setattr(places, "reachable_binaries", lambda found, _: found)
        with pytest.raises(ConfigurationError, match="is full: free some space"):
            lab.up(disk / "lab")
        assert list((disk / "root").iterdir()) == []
        assert sorted(path.name for path in disk.iterdir()) == ["root"]
        assert list(desk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
