"""A throw-away lab, and folders to work in that are clean afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgonce import lab
from pgonce.lab import envfile
from pgonce.lab.home import Lab


@pytest.fixture(scope="session", autouse=True)
def _no_lab_of_the_user() -> Iterator[None]:
    """Nothing of the user's environment leads a lab astray, and no lab of the user's is touched."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*envfile.MISLEADING, "LAB_DIR"]:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def thrown_away() -> Iterator[Lab]:
    """A lab for the tests of a module."""
    with lab.throw_away() as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; the lab that is up there at the end is cleaned."""
    folder = tmp_path / "a desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    os.chdir(folder)
    lab.clean({})


def ask(one: Lab, question: str) -> object:
    """Ask the lab's server something of one value."""
    with psycopg.connect(one.dsn("lab-test")) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a short path of a folder that everybody may enter, in which a lab may be made."""
    folder = Path(tempfile.mkdtemp(prefix="pgonce-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
