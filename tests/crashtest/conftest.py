"""A folder for a program under test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty working folder, in a folder of its own."""
    made = tmp_path / "program"
    made.mkdir()
    return made
