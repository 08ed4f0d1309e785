"""The row report: every row of the input with its stored result, the same bytes however it was run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conftest import make_clerk
from database.jobs import Desk, Watching, make_order, never
from pgonce.api.report import row_report_file
from pgonce.engine.rowreport import BLOCK_ROWS, Reported, report_lines
from pgonce.errors import ConfigurationError, Interrupted, Retryable
from pgonce.model.outcome import RESULTS
from pgonce.sources import open_input

MIXED = [("a", 100, "x"), ("b", -5, "x"), ("a", 100, "x"), ("a", 7, "x"), ("", 3, "x"), ("d", 9, "x"), ("b", -5, "x")]


def report_of(desk: Desk, path: Path, run_id: int = 1, job: str = "pay", clerk: Any = None) -> bytes:
    """Make the report of a run that has ended."""
    with open_input(path) as source:
        what = Reported(job=job, run_id=run_id, source="")
        return b"".join(report_lines(clerk or desk.clerk, source, what, interrupted=never))


def results(report: bytes) -> list[tuple[Any, ...]]:
    """Return line, id, result, cents and run of every row of a report."""
    rows = [json.loads(line) for line in report.splitlines()]
    return [(row["line"], row["event_id"], row["result"], row["amount_cents"], row["run"]) for row in rows]


def test_every_row_has_its_stored_result(desk: Desk) -> None:
    """The row that stands on an event has the event's state, other rows are replays, findings are what they are."""
    path = desk.csv(MIXED)
    done = desk.run(path)
    report = report_of(desk, path)
    assert results(report) == [
        (2, "a", "applied", 100, 1),
        (3, "b", "failed", -5, 1),
        (4, "a", "already", 100, 1),
        (5, "a", "conflict", 7, 1),
        (6, None, "rejected", None, None),
        (7, "d", "applied", 9, 1),
        (8, "b", "failed", -5, 1),
    ]
    counted = Counter(row[2] for row in results(report))
    assert counted == {name: rows for name in RESULTS if (rows := getattr(done.run, name).rows)}
    reasons = [json.loads(line).get("reason") for line in report.splitlines()]
    assert [bool(reason) for reason in reasons] == [False, True, False, True, True, False, True]
    assert list(json.loads(report.splitlines()[0])) == ["line", "source", "event_id", "result", "amount_cents", "run"]


def test_rows_of_another_run_name_their_owner(desk: Desk) -> None:
    """A later input that brings an event again is `already`, and says which run has it; adopted rows say so."""
    first, second = desk.csv([("a", 1, "x")]), desk.csv([("a", 1, "x"), ("b", 2, "x")])
    desk.run(first, kind="adopt")
    desk.run(second)
    assert results(report_of(desk, first)) == [(2, "a", "adopted", 1, 1)]
    assert results(report_of(desk, second, 2)) == [(2, "a", "already", 1, 1), (3, "b", "applied", 2, 2)]


def test_the_bytes_are_the_same_for_a_clean_run_and_one_that_stopped_often(
    desk: Desk, make_database: Callable[..., str], template: str
) -> None:
    """Two databases, one run at once, the other in five starts of one-row chunks: equal reports, times and all."""
    path = desk.csv(MIXED)
    desk.run(path)
    clean = report_of(desk, path)
    assert re.search(rb"[0-9]:[0-9]{2}", clean) is None
    clerk = make_clerk(make_database(template))
    try:
        for _ in range(5):
            watching = Watching()
            with pytest.raises(Interrupted):
                desk.run(path, clerk=clerk, chunk_rows=1, observer=watching, interrupted=lambda: bool(watching.steps))  # noqa: B023
        assert not desk.run(path, clerk=clerk, chunk_rows=1).shortcut
        assert report_of(desk, path, clerk=clerk) == clean
        desk.run(path, clerk=clerk)
        assert report_of(desk, path, clerk=clerk) == clean
    finally:
        clerk.session.close()


def test_an_input_of_several_blocks_is_reported_in_order(desk: Desk) -> None:
    """Memory holds one block; the order is that of the input."""
    path = desk.csv([(n, 1, "x") for n in range(BLOCK_ROWS + 5)])
    desk.run(path)
    assert [row[0] for row in results(report_of(desk, path))] == list(range(2, BLOCK_ROWS + 7))


def test_a_row_without_a_stored_result_is_never_made_up(desk: Desk) -> None:
    """A report over rows that are not settled fails instead of guessing; the older report stays."""
    path, out = desk.csv([("a", 1, "x"), ("b", 2, "x")]), desk.folder / "out.ndjson"
    watching = Watching()
    with pytest.raises(Interrupted):
        desk.run(path, chunk_rows=1, observer=watching, interrupted=lambda: bool(watching.steps))
    out.write_text("older\n")
    with (
        pytest.raises(Retryable, match="line 3 of run 1"),
        open_input(path) as source,
        row_report_file(out, input_name=str(path)) as file,
    ):
        file.write(desk.clerk, source, Reported(job="pay", run_id=1, source=""), interrupted=never)
    assert out.read_text() == "older\n"
    assert sorted(desk.folder.glob("out*")) == [out]


def test_the_file_takes_its_name_when_it_is_complete(desk: Desk) -> None:
    """While it is written the older report stands; afterwards nothing else is left. Links are followed."""
    path, out, link = desk.csv(MIXED), desk.folder / "out.ndjson", desk.folder / "link.ndjson"
    desk.run(path)
    out.write_text("older\n")
    link.symlink_to(out)
    with open_input(path) as source, row_report_file(link, input_name=str(path)) as file:
        assert out.read_text() == "older\n"
        file.write(desk.clerk, source, Reported(job="pay", run_id=1, source=""), interrupted=never)
        assert out.read_bytes() == report_of(desk, path)
    assert sorted(entry.name for entry in desk.folder.glob("*.ndjson*")) == ["link.ndjson", "out.ndjson"]
    assert link.is_symlink()
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


KILLED = """
import os, signal, sys
from pgonce.api.report import row_report_file
with row_report_file(sys.argv[1], input_name="-") as file:
    os.write(file.descriptor, b"half a li")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_no_half_report_and_the_next_run_cleans_up(desk: Desk) -> None:
    """SIGKILL in the middle: nothing under the name; the next report takes over what was left and leaves nothing."""
    path, out = desk.csv(MIXED), desk.folder / "out.ndjson"
    desk.run(path)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    with open_input(path) as source, row_report_file(out, input_name=str(path)) as file:
        file.write(desk.clerk, source, Reported(job="pay", run_id=1, source=""), interrupted=never)
    assert out.read_bytes() == report_of(desk, path)
    assert [entry.name for entry in desk.folder.glob("out*")] == ["out.ndjson"]


def test_two_processes_never_write_one_report(desk: Desk) -> None:
    """The second is told at once, and does not disturb the first."""
    out = desk.folder / "out.ndjson"
    with row_report_file(out, input_name="-") as first:
        with (
            pytest.raises(ConfigurationError, match="another process is writing"),
            row_report_file(out, input_name="-"),
        ):
            pass
        assert first.part is not None
        assert first.part.exists()


@pytest.mark.parametrize("name", ["missing/out.ndjson", ".", "events-1.csv"])
def test_a_place_that_cannot_be_written_is_refused_before_the_run(desk: Desk, name: str) -> None:
    """A missing folder, a folder, the input itself: refused with the path, and the input stays."""
    path = desk.csv(MIXED)
    with (
        pytest.raises(ConfigurationError, match="row report"),
        row_report_file(desk.folder / name, input_name=str(path)),
    ):
        pass
    assert path.read_text().startswith("id,amount")


def test_a_full_disk_says_that_the_run_is_complete(desk: Desk) -> None:
    """What cannot be written is said as an error that is safe to run again; a device keeps its name."""
    path = desk.csv(MIXED)
    desk.run(path)
    with (
        pytest.raises(Retryable, match=r"the run is complete.*No space left"),
        open_input(path) as source,
        row_report_file("/dev/full", input_name=str(path)) as file,
    ):
        file.write(desk.clerk, source, Reported(job="pay", run_id=1, source=""), interrupted=never)
    assert Path("/dev/full").is_char_device()


def test_a_report_reads_only(desk: Desk) -> None:
    """Making a report changes no row."""
    path = desk.csv(MIXED)
    desk.run(path, order=make_order())
    before = desk.everything()
    report_of(desk, path)
    assert desk.everything() == before
    with psycopg.connect(desk.dsn) as connection:
        assert connection.execute("select count(*) from pgonce.start").fetchone() == (1,)
