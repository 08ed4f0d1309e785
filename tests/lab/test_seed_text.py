"""The text that the project grew from: its blocks and its program run unchanged on our lab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import seed_text
from pgonce.lab import envfile

pytestmark = pytest.mark.xdist_group("lab")

TEXT = seed_text.read()
needs_text = pytest.mark.skipif(TEXT is None, reason=f"there is no {seed_text.FOLDER}, so its text cannot be run")

# What a user may have set, each of which would lead psql elsewhere or stop it.
USERS_OWN = {
    "PGHOST": "203.0.113.1",
    "PGPORT": "1",
    "PGUSER": "nobody-here",
    "PGDATABASE": "production",
    "PGREQUIREAUTH": "scram-sha-256",
    "PGTARGETSESSIONATTRS": "standby",
    "PGSSLMODE": "verify-full",
    "PGSERVICE": "production",
    "PGONCE_PG_BIN": "/usr/lib/postgresql/15/bin",
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
}


def block(number: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell block of the text in a shell of its own, as a reader would."""
    assert TEXT is not None
    environment = {name: value for name, value in os.environ.items() if name != "LAB_DIR"} | USERS_OWN
    return subprocess.run(
        ["bash"],
        input=TEXT.blocks[number],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


@needs_text
def test_the_blocks_and_the_program_run_unchanged(desk: Path) -> None:
    """Up, the program, clean: the promised lines, the race twice, and nothing is left."""
    assert TEXT is not None
    (desk / "batch.py").write_text(TEXT.program)
    shell = [sys.executable, "-m", "pgonce", "lab", "shell"]
    (desk / "lab-local.sh").write_text(subprocess.run(shell, text=True, capture_output=True, check=True).stdout)

    up = block(0, desk)
    assert up.returncode == 0, up.stderr
    folder = envfile.read(desk / "lab.env")
    assert folder is not None
    assert (folder / ".wiki-lab").is_file()

    ran = block(1, desk)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [*TEXT.expected, TEXT.expected[-1]]

    cleaned = block(2, desk)
    assert cleaned.returncode == 0, cleaned.stderr
    assert cleaned.stdout.splitlines()[-1] == "cleanup ok"
    assert not folder.exists()
    assert sorted(path.name for path in desk.iterdir()) == ["batch.py", "lab-local.sh"]


@needs_text
def test_cleaning_up_works_before_there_is_a_lab(desk: Path) -> None:
    """The clean-up block, after a set-up that failed at once."""
    shell = [sys.executable, "-m", "pgonce", "lab", "shell"]
    (desk / "lab-local.sh").write_text(subprocess.run(shell, text=True, capture_output=True, check=True).stdout)
    cleaned = block(2, desk)
    assert (cleaned.returncode, cleaned.stdout.splitlines()[-1]) == (0, "cleanup ok")
