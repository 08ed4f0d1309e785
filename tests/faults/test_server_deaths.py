"""The server dies under a live run: it goes on by itself, or ends in time with a code that says to run again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psycopg
import pytest

from faults.conftest import OwnServer
from faults.harness import wait_until
from faults.kills import (
    CHUNK_GATE,
    Command,
    Events,
    Watcher,
    assert_exact,
    command,
    wait_until_paused,
    write_events,
)

# A run that gives up has this long to say so after its chunk's deadline of one second.
GIVE_UP_S_MAX = 10.0


@pytest.fixture
def events(tmp_path: Path) -> Events:
    """A file of 60 chunks."""
    return write_events(tmp_path / "big.csv", range(6_000))


def accepts(dsn: str) -> bool:
    """Say whether the server takes connections."""
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def has_lost_its_session(watcher: Watcher) -> bool:
    """Say whether the server has ended this session, as it does with all of them when one of its processes crashed."""
    try:
        watcher.rows("select 1")
    except psycopg.OperationalError:
        return True
    return False


@pytest.mark.parametrize("death", ["kill -9 of the backend", "immediate stop"])
def test_a_run_goes_on_by_itself_when_the_server_is_back(own_server: OwnServer, events: Events, death: str) -> None:
    """R1, Q53: one start, through three recoveries of the server."""
    dsn = own_server.dsn
    with Command(command(dsn, events)) as running:
        for line in (1_000, 2_500, 4_000):
            with Watcher(dsn) as watcher:
                wait_until(lambda: watcher.progress(events).lines >= line, f"line {line}")  # noqa: B023
                if death == "immediate stop":
                    own_server.server.crash()
                    own_server.server.start()
                else:
                    [pid] = watcher.backends()
                    os.kill(pid, signal.SIGKILL)
                    wait_until(lambda: has_lost_its_session(watcher), "the server to notice")
            wait_until(lambda: accepts(dsn), "the server to recover")
        assert running.wait() == 0, running.output
    with Watcher(dsn) as watcher:
        assert watcher.progress(events).epoch == 1
    assert_exact(dsn, [events])


def test_a_server_that_stays_down_ends_the_run_in_time_and_the_next_is_exact(
    own_server: OwnServer, events: Events
) -> None:
    """R1: exit 69 soon after the chunk's deadline; nothing waits for a server that is gone only to say goodbye."""
    dsn = own_server.dsn
    with Command(command(dsn, events, "--chunk-deadline", "1", pause_at=[301])) as running:
        wait_until_paused(running)
        with psycopg.connect(dsn, autocommit=True) as blocker, Watcher(dsn) as watcher:
            blocker.execute("begin")
            blocker.execute("lock table pgonce.effect in share mode")
            running.send(signal.SIGCONT)
            wait_until(lambda: watcher.session_states() == ["active"], "the run to stand in a statement")
            own_server.server.crash()
            blocker.close()
        began_s = time.monotonic()
        assert running.wait() == 69, running.output
        assert time.monotonic() - began_s < GIVE_UP_S_MAX
    own_server.server.start()
    with Command(command(dsn, events)) as again:
        assert again.wait() == 0, again.output
    assert_exact(dsn, [events])


@pytest.mark.campaign
def test_a_server_that_goes_down_inside_commit_and_stays_down_leaves_the_outcome_unknown(
    own_server: OwnServer, events: Events
) -> None:
    """R3: exit 77, neither success nor failure; the next start is exact."""
    dsn = own_server.dsn
    with Command(command(dsn, events, "--chunk-deadline", "1", pause_at=[301])) as running:
        wait_until_paused(running)
        with Watcher(dsn) as watcher, psycopg.connect(dsn, autocommit=True) as holder:
            holder.execute("select pg_advisory_lock(%s)", (CHUNK_GATE,))
            running.send(signal.SIGCONT)
            wait_until(lambda: watcher.waiting(CHUNK_GATE), "a COMMIT at the gate")
            own_server.server.crash()
        assert running.wait() == 77, running.output
    own_server.server.start()
    with Command(command(dsn, events)) as again:
        assert again.wait() == 0, again.output
    assert_exact(dsn, [events])
