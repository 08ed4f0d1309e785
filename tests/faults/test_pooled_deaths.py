"""A server that dies behind PgBouncer: the pooler says it in its own words, and the run goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest

from database.jobs import Watching
from database.pooling import PROGRAM, pooler
from faults.conftest import OwnServer
from pgonce import Limits, run

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (apt-get install pgbouncer)")

ROWS = 30


@pytest.mark.parametrize("death", ["crash", "kill"])
def test_a_run_outlives_its_server(own_server: OwnServer, tmp_path: Path, death: str) -> None:
    """08P01 from a pooler that lost its server is a lost connection: tried again, once, and no event is charged."""
    path = tmp_path / "in.csv"
    path.write_text("id,amount\n" + "".join(f"{number},{number}\n" for number in range(1, ROWS + 1)))

    def die(count: int) -> None:
        if count != 3:
            return
        if death == "crash":
            own_server.server.crash()
            own_server.server.start()
            return
        with psycopg.connect(own_server.dsn, autocommit=True) as watcher:
            [(pid,)] = watcher.execute(
                "select pid from pg_stat_activity where application_name like 'pgonce/%' and pid <> pg_backend_pid()"
            ).fetchall()[:1]
            os.kill(pid, signal.SIGKILL)

    with pooler(own_server.dsn) as pooled:
        report = run(
            path, job="pay", key="id", amount="amount", dsn=pooled.dsn,
            limits=Limits(chunk_rows=5), observer=Watching(die),
        )  # fmt: skip
        assert report.exit_code == 0
        with psycopg.connect(own_server.dsn) as look:
            found = look.execute(
                "select count(*), sum(f.amount_cents)::bigint, max(e.attempts) from pgonce.effect as f"
                " join pgonce.event as e using (job, source, event_id)"
            ).fetchone()
    assert found == (ROWS, ROWS * (ROWS + 1) // 2, 1)
