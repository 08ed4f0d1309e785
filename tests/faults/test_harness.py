"""The harness itself: green for a safe job, red for a careless one, and nothing it starts stays behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from faults.harness import (
    CUT_BEFORE,
    ERROR_40001,
    FAULTS,
    Ended,
    Fault,
    FaultLoop,
    Summary,
    forked,
    kill_at,
    program,
    run_limited,
    wait_until,
    wait_until_blocked,
    wait_until_quiet,
)
from faults.ledger import rows, with_ledger


@pytest.fixture
def ledger(empty_database: str) -> str:
    """Give the direct dsn of a database with one table to write to."""
    return with_ledger(empty_database)


def settle(dsn: str) -> int:
    """Apply two rows safely: each is claimed by its key in the effect's own transaction."""
    for key in range(2):
        with psycopg.connect(dsn) as connection:
            connection.execute("insert into ledger values (%s, 100) on conflict do nothing", (key,))
    return 0


def settle_in_two_transactions(dsn: str) -> int:
    """Do what a careless job does: the effect in one transaction, the note that it is done in another."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.execute("select from ledger where id = 1").rowcount == 0:
            connection.execute("update total set cents = cents + 100")
            connection.execute("insert into ledger values (1, 100)")
    return 0


@pytest.fixture
def loop(make_database: Callable[..., str], tmp_path: Path) -> Callable[[Callable[[str], int]], Summary]:
    """Give a function that runs the whole fault loop over a job and returns its summary."""

    dsn = make_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table ledger (id integer primary key, cents bigint not null)")
        connection.execute("create table total (cents bigint not null)")

    def make_state() -> str:
        wait_until_quiet(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute("truncate ledger, total")
            connection.execute("insert into total values (0)")
        return dsn

    def fingerprint(dsn: str) -> object:
        with psycopg.connect(dsn) as connection:
            return rows(dsn), connection.execute("select cents from total").fetchall()

    def run(job: Callable[[str], int], faults: tuple[Fault, ...] = FAULTS) -> Summary:
        return FaultLoop(
            make_state=make_state,
            command=forked(job),
            check=lambda _: None,
            fingerprint=fingerprint,
            folder=tmp_path / "s",
            faults=faults,
            sample=1,
        ).run()

    return run


def test_the_loop_is_green_for_a_safe_job_and_saw_both_ends_of_a_doubtful_commit(
    loop: Callable[[Callable[[str], int]], Summary],
) -> None:
    """A job that is safe to run again passes every fault at every COMMIT, and both outcomes were reached."""
    summary = loop(settle)
    summary.assert_green()
    assert not summary.unreached
    assert summary.sometimes["commit in doubt, committed"] >= 2
    assert summary.sometimes["commit in doubt, not committed"] >= 2
    assert set(summary.tried) == {fault.name for fault in FAULTS}


def test_the_loop_is_red_for_a_job_that_is_not_safe(loop: Callable[..., Summary]) -> None:
    """The planted bug (effect and note in two transactions) is found where it is: between the two."""
    summary = loop(settle_in_two_transactions, (CUT_BEFORE, ERROR_40001))
    assert {failure.boundary.statement for failure in summary.failures} == {"insert into ledger values (1, 100)"}
    with pytest.raises(AssertionError, match="broke a promise"):
        summary.assert_green()


def test_a_program_is_killed_at_the_instant_its_progress_shows(ledger: str) -> None:
    """kill_at looks at the database, not the clock; the whole process group is gone."""
    script = (
        "import psycopg, sys\n"
        "with psycopg.connect(sys.argv[1], autocommit=True) as connection:\n"
        "    for key in range(1_000_000):\n"
        "        connection.execute('insert into ledger values (%s, 1)', (key,))\n"
    )
    with psycopg.connect(ledger, autocommit=True) as watcher:
        ended = kill_at(
            [sys.executable, "-c", script, ledger],
            lambda: watcher.execute("select from ledger where id = 20").rowcount == 1,
        )
    assert ended.code == -signal.SIGKILL
    wait_until_quiet(ledger)
    assert len(rows(ledger)) >= 20


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The time limit kills the process group: also what the program itself has started."""
    note = tmp_path / "pid"
    command = f"sleep 600 & echo $! > {note}; wait"
    ended = run_limited(program(lambda _: ["sh", "-c", command]), "", limit_s=1.0)
    assert ended == Ended(-signal.SIGKILL, "", is_timed_out=True)
    pid = int(note.read_text())
    wait_until(lambda: not _is_running(pid), "the child to be gone")


def _is_running(pid: int) -> bool:
    """Say whether a process runs; one that is dead but not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_blocked_session_is_recognised(ledger: str) -> None:
    """The one that waits for a lock is found by what the server says of it."""
    with (
        psycopg.connect(ledger) as holder,
        psycopg.connect(ledger) as waiter,
        psycopg.connect(ledger, autocommit=True) as watcher,
    ):
        holder.execute("insert into ledger values (1, 1)")
        blocked = threading.Thread(
            target=waiter.execute, args=("insert into ledger values (1, 2) on conflict do nothing",)
        )
        blocked.start()
        assert wait_until_blocked(watcher) == waiter.info.backend_pid
        holder.commit()
        blocked.join()
