"""A lab's home: private, recognisable, found again, and gone when it is cleaned."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from lab.conftest import ask
from pgonce import lab
from pgonce.errors import ConfigurationError
from pgonce.lab import envfile
from pgonce.server import find, watch
from pgonce.server.find import find_version
from server.processes import gone

pytestmark = pytest.mark.xdist_group("lab")


def test_a_lab_is_private_and_says_so(desk: Path) -> None:
    """A folder of mode 0700 with its marker; a socket exactly in it and no TCP; superuser lab, schema wiki_lab."""
    made = lab.up()
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    assert (made.folder / ".wiki-lab").is_file()
    assert ask(made, "show unix_socket_directories") == str(made.folder)
    assert ask(made, "show listen_addresses") == ""
    assert ask(made, "show port") == "5432"
    assert ask(made, "show server_version_num") == "180006"
    assert ask(made, "select current_user || '/' || current_database()") == "lab/postgres"
    assert ask(made, "select rolsuper from pg_roles where rolname = 'lab'") is True
    assert ask(made, "select count(*) from pg_namespace where nspname = 'wiki_lab'") == 1
    assert ask(made, "show statement_timeout") == "7s"
    assert ask(made, "show lock_timeout") == "5s"
    facts = lab.whoami(made)
    assert (facts["user"], facts["socket_folder"], facts["tcp_addresses"]) == ("lab", str(made.folder), "none")
    assert lab.versions(made)["postgresql"].startswith("18.6 ")


def test_seeding_twice_gives_the_same_orders(desk: Path) -> None:
    """Made-up orders, the same in every lab."""
    made = lab.up()
    digest = "select count(*) || ' ' || sum(amount_cents) || ' ' || md5(string_agg(o::text, ',' order by order_id))"
    assert lab.seed(made) == 1000
    first = ask(made, f"{digest} from wiki_lab.orders as o")
    lab.seed(made)
    assert ask(made, f"{digest} from wiki_lab.orders as o") == first
    assert ask(made, "select count(distinct customer) from wiki_lab.orders") == 97


def test_a_shell_finds_the_lab_whatever_the_user_has_set(desk: Path) -> None:
    """lab.env under `set -euo pipefail`: psql is there, and every variable of libpq that could mislead is unset."""
    made = lab.up()
    misled = dict.fromkeys(envfile.MISLEADING, "misleading") | {"PGPORT": "1", "PGCONNECT_TIMEOUT": "1"}
    script = """set -euo pipefail
    . ./lab.env
    . ./lab.env
    psql -X -At -h "$LAB_DIR" -U lab -d postgres -c 'select 40 + 2'
    env | grep -E '^(PG|PSQL)' || echo 'nothing left'"""
    done = subprocess.run(
        ["bash", "-c", script], cwd=desk, env=os.environ | misled, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["42", "nothing left"]), done.stderr
    psql = subprocess.run(
        ["bash", "-c", ". ./lab.env; command -v psql"], cwd=desk, text=True, capture_output=True, check=True
    )
    assert psql.stdout.strip() == f"{made.home}/bin/psql"


def test_a_second_lab_in_the_same_folder_is_refused_and_the_first_stays(desk: Path) -> None:
    """The message names the file, and what to do."""
    made = lab.up()
    before = (desk / "lab.env").read_text()
    with pytest.raises(ConfigurationError, match=r"lab\.env.*pgonce lab clean"):
        lab.up()
    assert (desk / "lab.env").read_text() == before
    assert ask(made, "select 1") == 1


def test_cleaning_may_be_done_twice_and_leaves_nothing(desk: Path) -> None:
    """Folder, file, server, watcher: all gone; the second time there is nothing to do."""
    made = lab.up()
    pid = made.server.postmaster_pid
    assert lab.clean() == made.folder
    assert gone(pid)
    assert not made.folder.exists()
    assert list(desk.iterdir()) == []
    assert lab.clean() is None
    assert lab.clean({"LAB_DIR": str(made.folder)}) is None


def test_cleaning_from_elsewhere_takes_the_file_away_too(desk: Path, tmp_path: Path) -> None:
    """LAB_DIR is enough; the marker knows which lab.env leads to the lab."""
    made = lab.up()
    other = tmp_path / "other"
    other.mkdir()
    os.chdir(other)
    assert lab.clean({"LAB_DIR": str(made.folder)}) == made.folder
    assert not (desk / "lab.env").exists()


def test_two_labs_at_once_do_not_meet(desk: Path, tmp_path: Path) -> None:
    """Each has a server of its own; cleaning one leaves the other; who names both is asked which one."""
    one = lab.up()
    other_desk = tmp_path / "other"
    other_desk.mkdir()
    two = lab.up(env_file=other_desk / "lab.env")
    assert one.folder != two.folder
    lab.seed(two)
    assert ask(one, "select to_regclass('wiki_lab.orders') is null") is True
    with pytest.raises(ConfigurationError, match="two labs"):
        lab.clean({"LAB_DIR": str(two.folder)})
    assert lab.clean({}, env_file=other_desk / "lab.env") == two.folder
    assert ask(one, "select 1") == 1


def test_a_lab_that_is_down_is_started_again_when_it_is_used(desk: Path) -> None:
    """After a crash of the machine, say."""
    made = lab.up()
    lab.seed(made)
    made.server.crash()
    found = lab.find({})
    assert found is not None
    assert ask(found, "select count(*) from wiki_lab.orders") == 1000


def test_there_may_be_no_lab(desk: Path) -> None:
    """Neither a file nor LAB_DIR, or one of a lab that is gone."""
    assert lab.find({}) is None
    assert lab.find({"LAB_DIR": "/tmp/pgonce-lab-00000000"}) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a blank", "blank"),
        ("a,comma", "comma"),
        ("x" * 90, "longer than 80 bytes"),
        ("quote'", "another letter"),
    ],
)
def test_a_folder_that_does_not_do_is_refused(desk: Path, short: Path, name: str, why: str) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigurationError, match=why):
        lab.up(short / name)
    assert list(desk.iterdir()) == []
    assert list(short.iterdir()) == []


def test_a_folder_that_is_not_empty_is_refused_and_kept(desk: Path, short: Path) -> None:
    """Nobody's files are mixed with a lab's, and then removed with it."""
    (short / "mine").mkdir()
    (short / "mine" / "letter").write_text("dear")
    with pytest.raises(ConfigurationError, match="not an empty folder"):
        lab.up(short / "mine")
    with pytest.raises(ConfigurationError, match="not an empty folder"):
        lab.up(short / "mine" / "letter")
    assert (short / "mine" / "letter").read_text() == "dear"
    assert list(desk.iterdir()) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_may_be_chosen(desk: Path, short: Path, exists: bool) -> None:
    """New or empty."""
    if exists:
        (short / "chosen").mkdir()
    made = lab.up(short / "chosen")
    assert made.folder == short / "chosen"
    assert ask(made, "show unix_socket_directories") == str(short / "chosen")
    assert lab.clean() == short / "chosen"
    assert list(short.iterdir()) == []


def test_only_18_6_is_taken(desk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever PGONCE_PG_BIN says; without it the message says how to get it, and nothing is left behind."""
    fake = tmp_path / "bin"
    fake.mkdir()
    for program in ("postgres", "initdb"):
        (fake / program).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 17.4'\n")
        (fake / program).chmod(0o755)
    monkeypatch.setenv("PGONCE_PG_BIN", str(fake))
    assert find_version((18, 6)).origin == "wheel"
    assert find_version((17, 4)).origin == "PGONCE_PG_BIN"
    monkeypatch.setattr(find, "_wheel_dirs", lambda: iter(()))
    with pytest.raises(ConfigurationError, match=r"no PostgreSQL 18\.6 was found"):
        lab.up()
    assert list(desk.iterdir()) == []


def test_a_throw_away_lab_is_gone_after_its_block() -> None:
    """Also when the block fails."""
    for failing in (False, True):
        try:
            with lab.throw_away() as made:
                pid = made.server.postmaster_pid
                assert ask(made, "show unix_socket_directories") == str(made.folder)
                if failing:
                    raise InterruptedError
        except InterruptedError:
            pass
        assert gone(pid)
        assert not made.folder.exists()
        assert not watch.is_up(made.folder)
