"""Fixtures for tests that need a PostgreSQL server: one scratch server a process, one fresh database a test.

PGONCE_TEST_PG_BIN chooses the programs (a second lane with another major release); PGONCE_TEST_DSN uses a server that
is already there instead, on which the tests make and drop databases only.

PYTEST_DONT_REWRITE: it has no assertions, and conftest.py imports it before pytest could rewrite it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgonce import server as embedded
from pgonce.server import find

SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "max_prepared_transactions": "10"}
"""fsync off is safe for what these tests do: they end servers, never the machine under them."""

_numbers = itertools.count(1)


class ExternalServer:
    """A server named by PGONCE_TEST_DSN: it has databases, but its life is not ours."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def __getattr__(self, name: str) -> object:
        pytest.skip(f"PGONCE_TEST_DSN names a server that the tests must not handle ({name})")


AnyServer = embedded.ScratchServer | ExternalServer


def chosen_binaries() -> embedded.Binaries:
    """Return the programs of PGONCE_TEST_PG_BIN, else what the embedded server would use."""
    named = os.environ.get("PGONCE_TEST_PG_BIN")
    if not named:
        return embedded.find_binaries()
    version = find.version_of(Path(named))
    if version is None:
        pytest.exit(f"PGONCE_TEST_PG_BIN={named}: no postgres and initdb can be run there", returncode=4)
    return embedded.Binaries(Path(named).resolve(), version, "PGONCE_TEST_PG_BIN")


def create_database(server: AnyServer, template: str | None = None) -> str:
    """Make a database, a copy of ``template`` (a name or a dsn) if given; return its dsn."""
    name = f"pgonce_test_{os.getpid()}_{next(_numbers)}"
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    if template is not None:
        original = _name_of(template)
        statement += sql.SQL(" template {}").format(sql.Identifier(original))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(statement)
    return make_conninfo(server.dsn, dbname=name)


def drop_database(server: AnyServer, dsn: str) -> None:
    """Drop a database that ``create_database`` made, ending whatever is still connected to it."""
    statement = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(_name_of(dsn)))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(statement)


@pytest.fixture(scope="session")
def server() -> Iterator[AnyServer]:
    """Yield this process's server."""
    external = os.environ.get("PGONCE_TEST_DSN")
    if external:
        yield ExternalServer(external)
        return
    parent = embedded.memory_folder()  # where cloning a database for every test does not become slower with each
    with embedded.scratch(settings=SETTINGS, binaries=chosen_binaries(), parent=parent) as made:
        yield made


@pytest.fixture
def make_database(server: AnyServer) -> Iterator[Callable[..., str]]:
    """Yield a function that makes databases (``template=``) which are dropped after the test."""
    made: list[str] = []

    def make(template: str | None = None) -> str:
        made.append(create_database(server, template))
        return made[-1]

    yield make
    if isinstance(server, embedded.ScratchServer):
        server.start()
    for dsn in made:
        drop_database(server, dsn)


@pytest.fixture
def empty_database(make_database: Callable[..., str]) -> str:
    """Yield the dsn of a fresh database, dropped after the test."""
    return make_database()


def _name_of(name_or_dsn: str) -> str:
    if "=" not in name_or_dsn and "://" not in name_or_dsn:
        return name_or_dsn
    return str(psycopg.conninfo.conninfo_to_dict(name_or_dsn)["dbname"])
