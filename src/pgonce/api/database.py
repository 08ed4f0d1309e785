"""The database that a call works in, with its schema checked: what the user named, or the embedded server."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pgonce.db.connect import Target, named_target
from pgonce.db.schema import check_schema_name, migrate, require_current
from pgonce.db.session import Session, default_random
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.engine.bookkeeping import Clerk
from pgonce.errors import Interrupted
from pgonce.model.backoff import Backoff
from pgonce.model.deadline import Deadline
from pgonce.server import running


@contextmanager
def target(dsn: str | None = None, *, embedded: bool = False) -> Iterator[tuple[Target, bool]]:
    """Choose the database: ``dsn``, then the environment, then the embedded server; the latter for as long as it is
    used.

    Yields the target and whether it is the embedded one. ``embedded`` beats all but ``dsn``.
    """
    named = named_target(dsn, {} if embedded else os.environ)
    if named is not None:
        yield named, False
        return
    with running() as server:
        yield Target(conninfo=server.dsn, named_by="the embedded server"), True


@contextmanager
def opened(
    dsn: str | None = None,
    *,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    application: str = "pgonce",
    backoff: Backoff | None = None,
    seed: int | None = None,
    until: Deadline | None = None,
    prepare: bool = True,
    tell: Callable[[str], None] = lambda _text: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Clerk]:
    """Open a session on the chosen database and check its schema.

    The embedded server gets its schema by itself; any other database has to have it (``pgonce db init``). ``prepare``
    False leaves the schema unchecked. ``tell`` is told once which database it is, without its password. ``interrupted``
    ends every wait of the session once it says so, with Interrupted. ``seed`` makes the jitter of its waits repeatable;
    without it no two processes share one. ``until`` bounds all that the clerk does.
    Raises Unreachable, SchemaMismatch or ConfigurationError.
    """
    check_schema_name(schema)
    with target(dsn, embedded=embedded) as (chosen, is_embedded):
        tell(f"using the {chosen.label} (named by {chosen.named_by})")
        pace, sleep = backoff or Backoff(), _interruptible(interrupted)
        draw = default_random if seed is None else random.Random(seed).random  # noqa: S311 - it only spreads waits
        session = Session(
            chosen,
            schema=schema,
            application=application,
            random=draw,
            sleep=sleep,
            backoff=pace,
            tell=tell,
        )
        clerk = Clerk(session=session, clock=time.monotonic, sleep=sleep, random=draw, backoff=pace, until=until)
        try:
            if prepare and is_embedded:
                clerk.do(migrate)
            if prepare:
                clerk.do(require_current, commit=False)
            yield clerk
        finally:
            session.close()


# A wait looks this often whether it was asked to end: below what a person notices.
SLICE_S = 0.1


def _interruptible(interrupted: Callable[[], bool]) -> Callable[[float], None]:
    """Make a sleep that ends with Interrupted once the run is asked to stop."""

    def sleep(seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            if interrupted():
                raise Interrupted("stopped as asked, while waiting for the database. Nothing is half done; run again.")
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, SLICE_S))

    return sleep
