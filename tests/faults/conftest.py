"""A server whose whole life is in a test's hands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import make_clerk
from faults.kills import install_gates
from faults.ledger import ReachProxy, proxies_in, with_ledger
from pgonce import server as embedded
from pgonce.db.schema import migrate
from servers_plugin import chosen_binaries, create_database, drop_database

# The operating system keeps what a server wrote when only the server ends, so fsync changes nothing here. A writer that
# sleeps makes an asynchronous commit that is lost by a crash certain instead of likely.
SETTINGS = {"fsync": "off", "wal_writer_delay": "10s"}


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server that tests may crash, stop and set back, and a fresh database in it with the schema and the gates."""

    server: embedded.ScratchServer
    dsn: str


@pytest.fixture(scope="module")
def mortal() -> Iterator[tuple[embedded.ScratchServer, str]]:
    """A server for the tests of a module, and the template of their databases."""
    with embedded.scratch(settings=SETTINGS, binaries=chosen_binaries()) as server:
        template = create_database(server)
        clerk = make_clerk(template)
        clerk.do(migrate)
        clerk.session.close()
        install_gates(template)
        yield server, template


@pytest.fixture
def own_server(mortal: tuple[embedded.ScratchServer, str]) -> Iterator[OwnServer]:
    """Give the module's server, running, with a fresh database."""
    server, template = mortal
    dsn = create_database(server, template)
    yield OwnServer(server, dsn)
    server.start()
    drop_database(server, dsn)


@pytest.fixture
def ledger(empty_database: str) -> str:
    """Give the direct dsn of a database with one table to write to."""
    return with_ledger(empty_database)


@pytest.fixture
def through(tmp_path: Path) -> ReachProxy:
    """Give a context manager of a proxy in front of a dsn's server, and the dsn through it."""
    return proxies_in(tmp_path)
