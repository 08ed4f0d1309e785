"""What is measured. Each prepares what it does in its own process and returns a function that does it, and is timed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

import pgonce
from benchmarks.inputs import JOB, Input, premade
from pgonce.db.copying import HEADER, TRAILER
from pgonce.db.statements import DEFAULT_SCHEMA, statement

Action = Callable[[], None]

EFFECT = """insert into public.booking (payment_id, account, cents)
select event_id, account, amount_cents from chunk
"""
BOOKING = "create table public.booking (payment_id text primary key, account text not null, cents bigint not null)"


def floor(dsn: str, source: Input, is_sorted: bool) -> Action:
    """COPY rows that were made before into the shipped tables, a transaction a chunk, without the reference's check."""
    chunks = list(premade(source, is_sorted=is_sorted))
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("alter table pgonce.effect disable trigger effect_reference")

    def copy() -> None:
        for events, effects in chunks:
            with connection.transaction(), connection.cursor() as cursor:
                for name, pieces in (("copy_events", events), ("copy_effects", effects)):
                    with cursor.copy(statement(name, DEFAULT_SCHEMA)) as out:
                        out.write(HEADER)
                        for piece in pieces:
                            out.write(piece)
                        out.write(TRAILER)

    return copy


def ours(dsn: str, source: Input, options: dict[str, Any]) -> Action:
    """Run the job over the file, from opening it to the report. What it imports is imported before."""
    if find_spec("pyarrow") is not None:
        import_module("pgonce.engine.columnar")
    options = {**options, "limits": pgonce.Limits(**options.get("limits", {}))}

    def run() -> None:
        report = pgonce.run(
            source.path, job=JOB, key="payment_id", amount="amount_cents", dsn=dsn, also=True, **options
        )
        if report.exit_code or report.start.read.rows != source.rows:
            raise RuntimeError(f"this is no measurement: {report}")

    return run


def ours_with_effect(dsn: str, source: Input, folder: Path, options: dict[str, Any] | None = None) -> Action:
    """Run the job with SQL of the user's that inserts a row an event."""
    script = folder / "effect.sql"
    script.write_text(EFFECT, encoding="utf-8")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(BOOKING)
    return ours(dsn, source, {**(options or {}), "effect": script})


def replay(dsn: str, source: Input, options: dict[str, Any] | None = None) -> Action:
    """Run the job over a file that it settled before, reading it all."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update pgonce.run set touched = true")
    return ours(dsn, source, options or {})


def finished(dsn: str, source: Input) -> Action:
    """Hand in a finished file again."""

    def run() -> None:
        report = pgonce.run(source.path, job=JOB, key="payment_id", amount="amount_cents", dsn=dsn)
        if not report.shortcut:
            raise RuntimeError("the first answer was not repeated")

    return run


def loop(dsn: str, source: Input) -> Action:
    """Insert event and effect row by row in a bare loop, a commit an item: the floor of the checkpoint ``item``."""
    with source.path.open(encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(",") for line in file][1:]
    connection = psycopg.connect(dsn)
    connection.execute("alter table pgonce.effect disable trigger effect_reference")
    connection.commit()

    def insert() -> None:
        for number, (payment_id, cents, *rest) in enumerate(rows):
            payload = '["' + '","'.join(rest) + '"]'
            connection.execute(
                """insert into pgonce.event (amount_cents, run_id, line, epoch, attempts, job, source, event_id, status,
                payload) values (%s, 1, %s, 1, 1, %s, '', %s, 'completed', %s)""",
                (int(cents), number, JOB, payment_id, payload),
            )
            connection.execute(
                "insert into pgonce.effect (amount_cents, job, source, event_id) values (%s, %s, '', %s)",
                (int(cents), JOB, payment_id),
            )
            connection.commit()

    return insert
