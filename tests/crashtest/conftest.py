"""A folder for a program under test, and a database to be cloned where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from crashtest.hosted import everything, ours
from crashtest.programs import SCHEMA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty working folder, in a folder of its own."""
    made = tmp_path / "program"
    made.mkdir()
    return made


@pytest.fixture
def shop(make_database: Callable[..., str]) -> Iterator[str]:
    """The original; after the test it is as it was, and nothing of the crash test is on its server."""
    dsn = make_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
    before = everything(dsn)
    yield dsn
    assert ours(dsn) == []
    assert everything(dsn) == before
