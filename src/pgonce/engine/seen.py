"""What a plan has met so far and the database does not know: on disk, so that any input fits into constant memory.

It is a private database of SQLite without a name: its file is unlinked as soon as it is opened, and nothing of it
remains however the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pgonce.engine.compare import FirstRow
from pgonce.errors import ConfigurationError
from pgonce.model.row import Key

# What SQLite keeps in memory of it; the rest is on disk. Enough for the upper levels of the index of a few million ids.
CACHE_KIB = 8 * 1024


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event as the run would have left it; ``first`` is the row that named it first, None if it is stored."""

    status: str
    first: FirstRow | None


class Seen:
    """The events that the rows before would have stored or changed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, key: Key) -> SeenEvent | None:
        """Return what the rows before made of an event, None if they did not touch it."""
        with _disk():
            found = self._connection.execute(
                "select status, line, amount_cents, payload from seen where source = ? and event_id = ?", key
            ).fetchone()
        if found is None:
            return None
        status, line, amount_cents, payload = found
        return SeenEvent(status, None if payload is None else FirstRow(line, amount_cents, payload))

    def put(self, key: Key, event: SeenEvent) -> None:
        """Remember what a row makes of an event. Safe to re-run: the last one counts."""
        first = event.first
        values = (None, None, None) if first is None else (first.line, first.amount_cents, first.payload)
        with _disk():
            self._connection.execute(
                "insert or replace into seen values (?, ?, ?, ?, ?, ?)", (*key, event.status, *values)
            )


@contextmanager
def seen_events() -> Iterator[Seen]:
    """Open an empty memory of events; it is gone when the body ends. Raises ConfigurationError if the disk is full."""
    connection = sqlite3.connect("", isolation_level=None)
    try:
        with _disk():
            connection.execute("pragma journal_mode = off")
            connection.execute("pragma synchronous = off")
            connection.execute(f"pragma cache_size = -{CACHE_KIB}")
            connection.execute(
                "create table seen (source text, event_id text, status text, line integer, amount_cents integer, "
                "payload text, primary key (source, event_id))"
            )
            connection.execute("begin")
        yield Seen(connection)
    finally:
        connection.close()


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ConfigurationError(
            f"the plan needs room for the ids of the input in a temporary file and got none: {error}. Make room, or "
            "set TMPDIR to another folder"
        ) from error
