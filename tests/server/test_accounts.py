"""As root and as an ordinary user."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pgonce import server as embedded
from pgonce.server import place as places
from server.processes import cleaned, gone, until

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

AS_USER = """
import os, sys, time, psycopg
from pathlib import Path
from pgonce import server
from pgonce.errors import ConfigurationError
home = Path(sys.argv[1])
for _ in range(2):
    with server.running(home) as used, psycopg.connect(used.dsn) as connection:
        assert os.stat(used.pgdata).st_uid == os.getuid()
        assert os.stat(home).st_mode & 0o777 == 0o700
        assert used.pgdata == home / "pgdata"
        connection.execute("create table if not exists t ()")
server.unpin(home)
with server.scratch(parent=home) as used, psycopg.connect(used.dsn) as connection:
    connection.execute("select 1")
assert not used.folder.exists()
os.mkdir(home / "closed", 0o500)
for forbidden in (home / "closed" / "below", Path("/root-of-all")):
    try:
        with server.running(forbidden):
            pass
    except ConfigurationError as error:
        assert str(forbidden) in str(error) and "PGONCE_HOME" in str(error), error
    else:
        raise AssertionError(forbidden)
try:
    server.status(Path(sys.argv[2]))
except ConfigurationError as error:
    assert "belongs to" in str(error), error
else:
    raise AssertionError("a foreign folder was accepted")
print("done")
"""


def run_as(user: pwd.struct_passwd, script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as an ordinary user, with an interpreter that this user can reach, or skip the test."""
    identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "TMPDIR")}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)

    def run(python: str, text: str) -> subprocess.CompletedProcess[str]:
        argv = [python, "-W", "error", "-c", text, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", env=environment, **identity)

    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if run(python, "import psycopg, pgonce.server").returncode == 0:
                return run(python, script)
    pytest.skip("an ordinary user cannot reach this checkout or no interpreter for it")


def test_an_ordinary_user_needs_nothing_but_a_folder(open_folder: Path) -> None:
    """The whole life of a server without root: also nothing foreign or forbidden is touched, and it is told."""
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    os.chown(open_folder, user.pw_uid, -1)
    done = run_as(user, AS_USER, open_folder / "home", Path("/"))
    assert done.stdout == "done\n", done.stderr


@root_only
def test_roots_server_runs_as_somebody_else_and_opens_no_folder(home: Path) -> None:
    above = {folder: folder.stat().st_mode for folder in home.parents}
    with embedded.running(home) as server:
        owner = Path(f"/proc/{server.pid}").stat().st_uid
        assert owner != 0
        assert server.pgdata.is_relative_to(places.ROOTS_BASE)
        assert server.pgdata.stat().st_uid == owner
        assert {folder: folder.stat().st_mode for folder in home.parents} == above
        assert embedded.status(home).pid == server.pid


@root_only
def test_roots_server_stays_in_the_data_folder_if_it_can_be_reached(open_folder: Path) -> None:
    with cleaned(open_folder / "a" / "b") as home:
        umask = os.umask(0o077)
        try:
            with embedded.running(home) as server:
                assert server.pgdata == home / "pgdata"
        finally:
            os.umask(umask)


@root_only
def test_a_wheel_in_roots_private_folder_is_copied_once(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "ROOTS_BASE", open_folder / "base")
    original = embedded.find_binaries(only="wheel")
    package = original.bin_dir.parent.parent
    libraries = package.with_name(package.name + ".libs")
    shutil.copytree(package / "pginstall", tmp_path / package.name / "pginstall")
    shutil.copytree(libraries, tmp_path / libraries.name)
    hidden = embedded.Binaries(tmp_path / package.name / "pginstall" / "bin", original.version, "wheel")
    account = places.server_account()
    usable = places.reachable_binaries(hidden, account)
    assert usable.bin_dir.is_relative_to(places.ROOTS_BASE)
    stamp = usable.bin_dir.stat().st_ino
    assert places.reachable_binaries(hidden, account) == usable
    assert usable.bin_dir.stat().st_ino == stamp
    with embedded.scratch(binaries=hidden) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
        pid = server.postmaster_pid
    until(lambda: gone(pid))
    assert tmp_path.stat().st_mode & 0o777 == 0o700
