"""Where a state is tested: in memory as long as it is small, else in the temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crashtest.programs import crash_psql
from pgonce import server as embedded
from pgonce.crashtest import conduct
from pgonce.crashtest.base import NO_SPACE
from pgonce.crashtest.faults import Fault
from pgonce.errors import ConfigurationError

SCHEMA = "create table done (id text primary key);"
PROGRAM = "insert into done values ('x') on conflict do nothing;"


@pytest.fixture
def parents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path | None]:
    """Return where servers are made; a folder of the test's stands for the one in memory."""
    found: list[Path | None] = []

    def scratch(*, parent: Path | None, **options: Any) -> Any:
        found.append(parent)
        return embedded.scratch(parent=parent, **options)

    (tmp_path / "m").mkdir()
    monkeypatch.setattr(conduct, "memory_folder", lambda: tmp_path / "m")
    monkeypatch.setattr(conduct, "scratch", scratch)
    return found


def crash(folder: Path, schema: str = SCHEMA) -> bool:
    """Test a small program."""
    return crash_psql(folder, PROGRAM, schema=schema, faults=(Fault.CUT_BEFORE,), points_max=1).is_safe


def test_a_small_state_is_tested_in_memory(folder: Path, parents: list[Path | None]) -> None:
    """One server, and nothing of it is left."""
    assert crash(folder)
    assert parents == [folder.parent / "m"]
    assert list((folder.parent / "m").iterdir()) == []


def test_a_state_that_turns_out_to_be_large_is_made_again_elsewhere(
    folder: Path, parents: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is not filled with it; the verdict is the same."""
    monkeypatch.setattr(conduct, "IN_MEMORY_BYTES_MAX", 5_000_000)
    assert crash(folder)
    assert parents == [folder.parent / "m", None]
    assert list((folder.parent / "m").iterdir()) == []


def test_a_large_working_folder_is_never_copied_into_memory(
    folder: Path, parents: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is known before anything is made."""
    (folder / "large").write_bytes(b"x" * 20_000_000)
    monkeypatch.setattr(conduct, "IN_MEMORY_BYTES_MAX", 19_000_000)
    assert crash(folder)
    assert parents == [None]


def test_a_setup_that_finds_no_space_is_tried_elsewhere(folder: Path, parents: list[Path | None]) -> None:
    """What it says is only told when there is no space there either; any other error is told at once."""
    with pytest.raises(ConfigurationError, match=NO_SPACE):
        crash(folder, schema=f"do $$ begin raise exception 'could not extend file: {NO_SPACE}'; end $$;")
    assert parents == [folder.parent / "m", None]
    parents.clear()
    with pytest.raises(ConfigurationError, match="nonsense"):
        crash(folder, schema="nonsense;")
    assert parents == [folder.parent / "m"]
