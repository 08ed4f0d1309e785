"""Homes for embedded servers, and processes that use them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.processes import Process, cleaned


@pytest.fixture
def processes() -> Iterator[Callable[..., Process]]:
    """Start processes that use a server (``running(...)`` or ``scratch()``); none survives the test."""
    started: list[Process] = []

    def start(call: str, **options: object) -> Process:
        started.append(Process(call, **options))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a data folder that does not exist yet; root's server cannot reach it."""
    with cleaned(tmp_path / "home"):
        yield tmp_path / "home"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield an empty folder that everybody may enter, outside pytest's private one."""
    folder = Path(tempfile.mkdtemp(prefix="pgonce-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
