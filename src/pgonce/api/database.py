"""The database that a call works in, with its schema checked: what the user named, or the embedded server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pgonce.db.connect import Target, named_target
from pgonce.db.schema import check_schema_name, migrate, require_current
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.db.transaction import Session, default_random
from pgonce.engine.bookkeeping import Clerk
from pgonce.model.backoff import Backoff
from pgonce.server import running


@contextmanager
def target(dsn: str | None = None, *, embedded: bool = False) -> Iterator[tuple[Target, bool]]:
    """Choose the database: ``dsn``, then the environment, then the embedded server; the latter for as long as it is used.

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
    prepare: bool = True,
    tell: Callable[[str], None] = lambda _text: None,
) -> Iterator[Clerk]:
    """Open a session on the chosen database and check its schema.

    The embedded server gets its schema by itself; any other database has to have it (``pgonce db init``). ``prepare``
    False leaves the schema unchecked. ``tell`` is told once which database it is, without its password.
    Raises Unreachable, SchemaMismatch or ConfigurationError.
    """
    check_schema_name(schema)
    with target(dsn, embedded=embedded) as (chosen, is_embedded):
        tell(f"using the {chosen.label} (named by {chosen.named_by})")
        pace = backoff or Backoff()
        session = Session(
            chosen, schema=schema, application=application, random=default_random, sleep=time.sleep, backoff=pace
        )
        clerk = Clerk(session=session, clock=time.monotonic, sleep=time.sleep, random=default_random, backoff=pace)
        try:
            if prepare and is_embedded:
                clerk.do(migrate)
            if prepare:
                clerk.do(require_current, commit=False)
            yield clerk
        finally:
            session.close()
