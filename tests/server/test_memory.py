"""Where a throw-away server may lie in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgonce import server as embedded
from pgonce.server import memory


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a folder stand for the one in memory, on a machine with 2 GB free and no limit; return where that stands."""
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_LIMITS", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal:       8000000 kB\nMemAvailable:   2097152 kB\nHugePages_Total:  0\n")
    return tmp_path


def test_a_folder_with_room_is_taken(room: Path) -> None:
    """Neither the file system nor the machine is short."""
    assert embedded.memory_folder() == room


def test_a_named_temporary_folder_goes_before(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says where temporary files belong is obeyed."""
    monkeypatch.setenv("TMPDIR", str(room))
    assert embedded.memory_folder() is None


@pytest.mark.parametrize(
    ("files", "is_enough"),
    [
        ({"meminfo": "MemAvailable:   1048575 kB\n"}, False),
        ({"meminfo": "MemFree: 99 kB\n"}, False),
        ({"memory.max": "max\n", "memory.current": "5\n"}, True),
        ({"memory.max": f"{3 << 30}\n", "memory.current": f"{2 << 30}\n"}, True),
        ({"memory.max": f"{3 << 30}\n", "memory.current": f"{(2 << 30) + 1}\n"}, False),
    ],
)
def test_memory_that_is_short_is_left_alone(room: Path, files: dict[str, str], is_enough: bool) -> None:
    """The machine's own count, and a container's, have to leave a gigabyte; what cannot be read is no room."""
    for name, text in files.items():
        (room / name).write_text(text)
    assert embedded.memory_folder() == (room if is_enough else None)


def test_a_small_file_system_is_left_alone(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container often has 64 MB there."""
    monkeypatch.setattr(memory, "ROOM_BYTES_MIN", 1 << 60)
    (room / "meminfo").write_text(f"MemAvailable: {1 << 60} kB\n")
    assert embedded.memory_folder() is None
    monkeypatch.setattr(memory, "MEMORY", room / "not-there")
    assert embedded.memory_folder() is None
