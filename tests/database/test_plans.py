"""With a million events stored, no statement of the hot path reads the table: each looks its keys up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgonce.db.arrays import bigint_array, text_array
from pgonce.db.statements import statement
from pgonce.engine.apply import COMPLETED_AT_A_TIME
from servers_plugin import AnyServer, create_database, drop_database

STORED = 1_000_000
CHUNK = 10_000

KEYS = [f"{number:09}" for number in range(0, STORED, STORED // CHUNK)]
AMOUNTS, PAYLOADS = [3] * CHUNK, ['["n"]'] * CHUNK
NEW = [f"{key}x" for key in KEYS]

LOAD = "copy pgonce.event (amount_cents, run_id, line, epoch, job, source, event_id, status, payload) from stdin"


def arrays(keys: list[str]) -> dict[str, Any]:
    """Give the parameters that name a chunk."""
    return {"job": "pay", "sources": text_array([""] * len(keys)), "event_ids": text_array(keys)}


WHOLE = {"amounts": bigint_array(AMOUNTS), "payloads": text_array(PAYLOADS)}
SPAN = {"job": "pay", "source": "", "rows": CHUNK, "payload_bytes": 100}
STATEMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify far apart": ("classify_events", {**arrays(KEYS), **WHOLE}),
    "classify side by side": ("classify_events", {**arrays([f"{n:09}" for n in range(CHUNK)]), **WHOLE}),
    "classify new": ("classify_events", {**arrays(NEW), **WHOLE}),
    "hash side by side": ("digest_events", {**SPAN, "low": KEYS[50], "high": f"{50 * 100 + CHUNK:09}"}),
    "hash far apart": ("digest_events", {**SPAN, "low": KEYS[0], "high": KEYS[-1]}),
    "lock": ("lock_events", arrays(KEYS)),
    "complete": (
        "complete_events",
        {**arrays(KEYS[:COMPLETED_AT_A_TIME]), "run_id": 1, "epoch": 1, "who": "me", "attempts": 1, "adopted": False},
    ),
}


@pytest.fixture(scope="module", params=["as it is loaded", "analysed"])
def million(server: AnyServer, template: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """Give a connection to a database with a million events, with and without statistics about them."""
    dsn = create_database(server, template)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("alter table pgonce.event set (autovacuum_enabled = off)")
        with (
            connection.cursor() as cursor,
            cursor.copy(LOAD) as copy,
        ):
            for start in range(0, STORED, CHUNK):
                copy.write(
                    "".join(f'3\t1\t{n}\t1\tpay\t\t{n:09}\tcompleted\t["n"]\n' for n in range(start, start + CHUNK))
                )
        if request.param == "analysed":
            connection.execute("analyze pgonce.event")
        yield connection
    drop_database(server, dsn)


def scans(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Give every scan of a table in a plan: its kind and the table."""
    if "Relation Name" in node:
        yield node["Node Type"], node["Relation Name"]
    for child in node.get("Plans", ()):
        yield from scans(child)


def planned(connection: psycopg.Connection, name: str, parameters: dict[str, Any]) -> list[tuple[str, str]]:
    """Explain a statement as the engine runs it."""
    text = b"explain (format json) " + statement(name, "pgonce")
    [[plan]] = connection.execute(text, parameters).fetchall()
    return list(scans((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))


def test_every_statement_looks_its_keys_up(million: psycopg.Connection) -> None:
    """One plan that reads the table costs more than all the rest of its chunk, and more with every event stored."""
    for what, (name, parameters) in STATEMENTS.items():
        found = [kind for kind, table in planned(million, name, parameters) if table == "event"]
        # What is to be completed may also be found by the index of open events, which are few.
        others = {"ModifyTable", "Bitmap Heap Scan"} if name == "complete_events" else set[str]()
        assert found, what
        assert set(found) <= {"Index Scan"} | others, what


@pytest.mark.parametrize("keys", [NEW, [f"a{number}" for number in range(CHUNK)]], ids=["far apart", "side by side"])
def test_the_check_of_sets_and_the_inserts_read_no_table(million: psycopg.Connection, keys: list[str]) -> None:
    """What a trigger's function plans is seen by the scans that it counts."""
    counted = "select seq_scan, idx_scan from pg_stat_xact_user_tables where relname = 'event'"
    fields = {
        **arrays(keys),
        **WHOLE,
        "run_id": 1,
        "epoch": 1,
        "attempts": 1,
        "adopted": False,
        "lines": bigint_array(range(CHUNK)),
        "statuses": text_array(["completed"] * CHUNK),
        "errors": text_array([None] * CHUNK),
    }
    with million.transaction(force_rollback=True):
        assert million.execute(statement("insert_events", "pgonce"), fields).fetchone() == (CHUNK, 0)
        found = million.execute(counted).fetchone()
    assert found is not None
    assert found[0] == 0
    assert found[1] > 0


def test_the_test_would_see_a_plan_that_reads_the_table(million: psycopg.Connection) -> None:
    """A plain join over as many keys is planned by reading all of it."""
    [[plan]] = million.execute(
        """explain (format json) select count(*) from unnest(%(event_ids)s::text[]) as k (event_id)
        join pgonce.event as e on e.event_id = k.event_id""",
        arrays(KEYS),
    ).fetchall()
    assert ("Seq Scan", "event") in list(scans(plan[0]["Plan"]))
