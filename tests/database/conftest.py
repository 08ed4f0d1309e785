"""The desk that the tests of the engine run their jobs from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import pgonce
from database.jobs import Desk
from database.shop import TABLES
from pgonce.engine.bookkeeping import Clerk


@pytest.fixture
def desk(database: str, clerk: Clerk, open_clerk: Callable[[], Clerk], tmp_path: Path) -> Iterator[Desk]:
    """Give a desk on a fresh database."""
    made = Desk(dsn=database, clerk=clerk, folder=tmp_path, make_clerk=open_clerk)
    yield made
    made.close()


@pytest.fixture
def other(database: str) -> Iterator[psycopg.Connection]:
    """Yield a connection that looks on, over a database with two accounts."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


@pytest.fixture
def once(database: str, other: psycopg.Connection) -> Iterator[pgonce.Once]:
    """Yield a connection of pgonce to that database."""
    with pgonce.connect(database) as opened:
        yield opened
