"""The desk that the tests of the engine run their jobs from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from database.jobs import Desk
from pgonce.engine.bookkeeping import Clerk


@pytest.fixture
def desk(database: str, clerk: Clerk, open_clerk: Callable[[], Clerk], tmp_path: Path) -> Iterator[Desk]:
    """Give a desk on a fresh database."""
    made = Desk(dsn=database, clerk=clerk, folder=tmp_path, make_clerk=open_clerk)
    yield made
    made.close()
