"""What all tests share: a database with the schema, cloned from a template, and sessions on it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from pgonce.db.connect import Target
from pgonce.db.schema import migrate
from pgonce.db.session import Session, default_random
from pgonce.engine.bookkeeping import Clerk
from pgonce.model.backoff import Backoff
from servers_plugin import create_database, drop_database

pytest_plugins = ["servers_plugin"]

# A shell without job control starts background jobs with SIGINT ignored, and so would every child of ours be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("pgonce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pgonce")


def make_clerk(dsn: str, schema: str = "pgonce") -> Clerk:
    """Open a session as the commands do."""
    backoff = Backoff()
    session = Session(
        Target(conninfo=dsn, named_by="a test"),
        schema=schema,
        application="pgonce/test",
        random=default_random,
        sleep=time.sleep,
        backoff=backoff,
    )
    return Clerk(session=session, clock=time.monotonic, sleep=time.sleep, random=default_random, backoff=backoff)


@pytest.fixture(scope="session")
def template(server: object) -> Iterator[str]:
    """A database with the schema, to be cloned; nothing stays connected to it."""
    dsn = create_database(server)
    clerk = make_clerk(dsn)
    clerk.do(migrate)
    clerk.session.close()
    yield dsn
    drop_database(server, dsn)


@pytest.fixture
def database(server: object, template: str) -> Iterator[str]:
    """The dsn of a fresh database with the schema."""
    dsn = create_database(server, template)
    yield dsn
    drop_database(server, dsn)


@pytest.fixture
def clerk(database: str) -> Iterator[Clerk]:
    """A clerk on a fresh database with the schema."""
    made = make_clerk(database)
    yield made
    made.session.close()


@pytest.fixture
def open_clerk(database: str) -> Iterator[Callable[[], Clerk]]:
    """A maker of further clerks on the fresh database."""
    made: list[Clerk] = []

    def make() -> Clerk:
        made.append(make_clerk(database))
        return made[-1]

    yield make
    for clerk in made:
        clerk.session.close()
