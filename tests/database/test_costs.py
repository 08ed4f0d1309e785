"""What a chunk costs: statements, round trips, WAL and memory, counted and not timed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from database.jobs import Desk, make_order, soon
from database.test_fast_path import rows_of

CHUNK = 200

CHUNKS = pytest.mark.parametrize("chunk", [200, 600], ids=["row by row", "as columns"])

# A little more than COPY alone: the position, and a page here and there.
WAL_OF_FLOOR_MAX = 1.05

MEMORY_MIB_MAX = 180

# The peak that the parent's wait reports may be the parent's own: a process that is spawned begins with its memory.
PEAK = """
import sys
from pgonce.cli.main import main
try:
    main()
finally:
    with open("/proc/self/status") as status:
        print(*[line for line in status if line.startswith("VmHWM")], file=sys.stderr)
"""


def traced(desk: Desk, action: Callable[[], object]) -> tuple[int, int]:
    """Count the statements that an action sends, and how often it waits for the server."""
    connection = desk.clerk.session.connect(soon(desk.clerk))
    with tempfile.TemporaryFile("w+") as file:
        connection.pgconn.trace(file.fileno())
        action()
        connection.pgconn.untrace()
        file.seek(0)
        kinds = Counter(line.split("\t")[3] for line in file.read().splitlines() if line.count("\t") >= 3)
    return kinds["Query"] + kinds["Execute"], kinds["ReadyForQuery"] + kinds["CopyInResponse"]


def a_chunk_of(desk: Desk, run: Callable[[int], Any]) -> tuple[int, int]:
    """Say what one chunk more costs: four chunks against three, after a run that declared the job."""
    run(2)
    three, four = (traced(desk, lambda chunks=chunks: run(chunks)) for chunks in (3, 4))
    return four[0] - three[0], four[1] - three[1]


@CHUNKS
def test_a_new_chunk_costs_six_statements_and_eight_round_trips(desk: Desk, chunk: int) -> None:
    """BEGIN, the bounds, COPY of events, COPY of effects, the position, COMMIT; a COPY waits twice."""

    def run(chunks: int) -> None:
        rows = rows_of(range(chunks * 10_000, chunks * 10_000 + chunks * chunk))
        desk.run(desk.csv(rows), order=make_order(chunk_rows=chunk))

    assert a_chunk_of(desk, run) == (6, 8)


@CHUNKS
def test_a_replayed_chunk_costs_five_statements(desk: Desk, chunk: int) -> None:
    """BEGIN, the bounds, the hash, the position, COMMIT."""
    paths = {
        chunks: desk.csv(rows_of(range(chunks * 10_000, chunks * 10_000 + chunks * chunk))) for chunks in (2, 3, 4)
    }
    for path in paths.values():
        desk.run(path, order=make_order(chunk_rows=chunk))

    def run(chunks: int) -> None:
        desk.sql("update pgonce.run set touched = true")
        desk.run(paths[chunks], order=make_order(chunk_rows=chunk))

    assert a_chunk_of(desk, run) == (5, 5)


def test_an_item_costs_five_statements(desk: Desk) -> None:
    """BEGIN, the bounds, one insert of event and effect, the position, COMMIT."""

    def run(chunks: int) -> None:
        desk.run(desk.csv(rows_of(range(chunks * 100, chunks * 101))), order=make_order(checkpoint="item"))

    assert a_chunk_of(desk, run) == (5, 5)


@CHUNKS
def test_user_sql_costs_twelve_statements_more(desk: Desk, chunk: int) -> None:
    """Make the relation, fill it, look at it, set the paths, run the statement, look again, drop it, tidy up."""

    def run(chunks: int) -> None:
        rows = rows_of(range(chunks * 10_000, chunks * 10_000 + chunks * chunk))
        desk.run(desk.csv(rows), order=make_order(chunk_rows=chunk, effect="select 1"))

    assert a_chunk_of(desk, run)[0] == 6 + 12


def wal_of(dsn: str, action: Callable[[], object]) -> int:
    """Say how many bytes of WAL an action writes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        [(before,)] = connection.execute("select pg_current_wal_insert_lsn()").fetchall()
        action()
        [(written,)] = connection.execute(
            "select (pg_current_wal_insert_lsn() - %s::pg_lsn)::bigint", (before,)
        ).fetchall()
    return int(written)


def test_wal_is_that_of_a_bare_copy_into_the_same_tables(
    make_database: Callable[..., str], template: str, desk: Desk
) -> None:
    """The floor is the same rows by COPY into the shipped tables, a transaction a chunk, and nothing else."""
    rows, chunk = rows_of(range(20_000)), 5_000
    path = desk.csv(rows)
    ours = wal_of(desk.dsn, lambda: desk.run(path, order=make_order(chunk_rows=chunk)))
    stored = desk.sql(
        """select amount_cents, run_id, line, epoch, attempts, job, source, event_id, status, payload
        from pgonce.event order by event_id"""
    )
    bare = make_database(template)

    def copy() -> None:
        with psycopg.connect(bare, autocommit=True) as connection:
            connection.execute("alter table pgonce.effect disable trigger effect_reference")
            for start in range(0, len(stored), chunk):
                with connection.transaction(), connection.cursor() as cursor:
                    part = stored[start : start + chunk]
                    names = "amount_cents, run_id, line, epoch, attempts, job, source, event_id, status, payload"
                    with cursor.copy(f"copy pgonce.event ({names}) from stdin") as out:
                        for row in part:
                            out.write_row(row)
                    with cursor.copy("copy pgonce.effect (amount_cents, job, source, event_id) from stdin") as out:
                        for row in part:
                            out.write_row((row[0], row[5], row[6], row[7]))

    floor = wal_of(bare, copy)
    assert ours <= floor * WAL_OF_FLOOR_MAX, (ours / len(rows), floor / len(rows))


@pytest.mark.parametrize(("rows", "width"), [(100_000, 20), (1_000, 200_000)], ids=["many", "wide"])
def test_memory_stays_bounded_whatever_the_rows(database: str, tmp_path: Path, rows: int, width: int) -> None:
    """The peak of the whole process, for many rows and for as wide ones as there may be."""
    path = tmp_path / "in.csv"
    with path.open("w") as file:
        file.write("id,amount,note\n")
        for number in range(rows):
            file.write(f"{number:09},3,{'n' * width}\n")
    where = ["--dsn", database, "-q", "--json"]
    arguments = ["run", str(path), "--job", "pay", "--key", "id", "--amount", "amount", *where]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert 20 < int(done.stderr.split()[-2]) / 1024 < MEMORY_MIB_MAX
