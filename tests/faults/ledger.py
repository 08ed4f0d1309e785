"""A database with one table to write to, a proxy in front of it, and what the fault tests do with both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from pgonce.crashtest.boundary import PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy

ReachProxy = Callable[..., contextlib.AbstractContextManager[tuple[Proxy, str]]]


def with_ledger(dsn: str) -> str:
    """Make the table ``ledger`` in an empty database and return its dsn."""
    with psycopg.connect(dsn) as connection:
        connection.execute("create table ledger (id integer primary key, cents bigint not null)")
    return dsn


def proxies_in(folder: Path) -> ReachProxy:
    """Return a context manager of a proxy in front of a dsn's server, and the dsn through it."""

    @contextlib.contextmanager
    def make(
        dsn: str, on_boundary: Callable[[Boundary], Action] = lambda _: PASS, *, is_tcp: bool = False, **options: Any
    ) -> Iterator[tuple[Proxy, str]]:
        place = None if is_tcp else folder / "s"
        with Proxy.of_dsn(dsn, on_boundary=on_boundary, listen_dir=place, **options) as made:
            yield made, made.dsn(dsn)

    return make


def once(statement: str, action: Action) -> Callable[[Boundary], Action]:
    """Fail the first boundary whose statement begins so."""
    left = [action]

    def on_boundary(boundary: Boundary) -> Action:
        return left.pop() if left and boundary.statement.startswith(statement) else PASS

    return on_boundary


def rows(dsn: str) -> list[tuple[int, int]]:
    """Read the ledger directly."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("select id, cents from ledger order by id").fetchall()


def insert_and_commit(dsn: str, *, key: int = 1) -> None:
    """Write one row in a transaction with explicit statements."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("insert into ledger values (%s, 100)", (key,))
        connection.execute("commit")
