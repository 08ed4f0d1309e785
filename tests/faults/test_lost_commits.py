"""Commits that the database acknowledged and then lost: a live run notices, and nothing ends up missing."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from faults.conftest import OwnServer
from faults.harness import wait_until
from faults.kills import (
    CHUNK_GATE,
    FINISH_GATE,
    Command,
    Events,
    Progress,
    Watcher,
    assert_exact,
    command,
    frozen,
    is_stopped,
    wait_until_paused,
    write_events,
)
from pgonce.api.run import carry_out, order
from pgonce.model.limits import Limits
from pgonce.model.observer import Silent, Step

ROWS = 4_000
EARLY_LINE, LATE_LINE = 1_000, 2_500


@pytest.fixture
def events(tmp_path: Path) -> Events:
    """A file of 40 chunks."""
    return write_events(tmp_path / "big.csv", range(ROWS))


def copy_cold(server: OwnServer, to: Path) -> None:
    """Stop the server in order, copy its data folder, and start it again."""
    server.server.stop()
    subprocess.run(["cp", "-a", str(server.server.pgdata), str(to)], check=True)
    server.server.start()


def go_back(server: OwnServer, copy: Path) -> None:
    """Crash the server and start it on the earlier copy of its data folder: what came after the copy is gone."""
    server.server.crash()
    subprocess.run(["rm", "-rf", str(server.server.pgdata)], check=True)
    subprocess.run(["cp", "-a", str(copy), str(server.server.pgdata)], check=True)
    server.server.start()


def stored(server: OwnServer, events: Events) -> Progress:
    """Read the progress in a connection of its own."""
    with Watcher(server.dsn) as watcher:
        return watcher.progress(events)


def until(server: OwnServer, running: Command, what: str, condition: Callable[[Watcher], bool]) -> None:
    """Wait until a condition holds, while the command runs."""
    with Watcher(server.dsn) as watcher:
        wait_until(lambda: running.ended or condition(watcher), what, limit_s=60.0)
    assert not running.ended, running.output


@contextmanager
def held_at(server: OwnServer, running: Command, gate: int) -> Iterator[None]:
    """Let a paused run go on into the COMMIT of a gate; it is let go from there when the block or the server ends."""
    with psycopg.connect(server.dsn, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(%s)", (gate,))
        running.send(signal.SIGCONT)
        until(server, running, "a COMMIT at the gate", lambda watcher: watcher.waiting(gate))
        yield


def take_commits_away(server: OwnServer, events: Events, copy: Path) -> None:
    """Put the copy in place while the command stands still; acknowledged commits are gone by that."""
    before = stored(server, events)
    go_back(server, copy)
    assert stored(server, events).lines < before.lines


@contextmanager
def copied_early(server: OwnServer, events: Events, copy: Path, *pause_at: int) -> Iterator[Command]:
    """Start the command, and copy the data when the first chunks are settled; it is still paused then."""
    with Command(command(server.dsn, events, pause_at=[EARLY_LINE, *pause_at])) as running:
        wait_until_paused(running)
        copy_cold(server, copy)
        yield running


def on_to_the_next_pause(running: Command) -> None:
    """Let a paused command go on until it pauses again."""
    running.send(signal.SIGCONT)
    wait_until(lambda: not is_stopped(running), "the command to go on")
    wait_until_paused(running)


def assert_went_on(server: OwnServer, running: Command, events: Events) -> None:
    """The same start ended well, and exact."""
    running.send(signal.SIGCONT)
    assert running.wait() == 0, running.output
    assert stored(server, events).epoch == 1
    assert_exact(server.dsn, [events])


def test_a_live_run_goes_on_from_what_is_stored(own_server: OwnServer, events: Events, tmp_path: Path) -> None:
    """E8: the compare-and-set finds another position, and the run reads the lost rows again."""
    with copied_early(own_server, events, tmp_path / "copy", LATE_LINE) as running:
        on_to_the_next_pause(running)
        take_commits_away(own_server, events, tmp_path / "copy")
        assert_went_on(own_server, running, events)


def test_a_commit_in_doubt_that_is_gone_with_those_before_it_is_not_taken_for_done(
    own_server: OwnServer, events: Events, tmp_path: Path
) -> None:
    """R3: the doubt is resolved by what is stored, and the loss of the earlier chunks is noticed as well."""
    with copied_early(own_server, events, tmp_path / "copy", LATE_LINE) as running:
        on_to_the_next_pause(running)
        with held_at(own_server, running, CHUNK_GATE), frozen(running):
            take_commits_away(own_server, events, tmp_path / "copy")
        assert_went_on(own_server, running, events)


def test_commits_lost_between_the_last_chunk_and_the_finish_are_noticed(
    own_server: OwnServer, events: Events, tmp_path: Path
) -> None:
    """E8: `finished` requires that the end of the input is what is stored, not what is remembered."""
    with copied_early(own_server, events, tmp_path / "copy") as running:
        with held_at(own_server, running, FINISH_GATE), frozen(running):
            take_commits_away(own_server, events, tmp_path / "copy")
        assert_went_on(own_server, running, events)


def test_a_start_that_is_not_stored_any_more_gives_up_and_the_next_one_is_exact(
    own_server: OwnServer, events: Events, tmp_path: Path
) -> None:
    """L2: exit 76, nothing of it is committed any more; the same command again does the whole input."""
    copy_cold(own_server, tmp_path / "copy")
    with Command(command(own_server.dsn, events, pause_at=[LATE_LINE])) as running:
        wait_until_paused(running)
        take_commits_away(own_server, events, tmp_path / "copy")
        running.send(signal.SIGCONT)
        assert running.wait() == 76, running.output
        assert "lost acknowledged commits" in running.output
    with Command(command(own_server.dsn, events)) as again:
        assert_went_on(own_server, again, events)


@pytest.mark.parametrize("gate", [CHUNK_GATE, FINISH_GATE])
def test_another_start_under_the_same_epoch_is_not_mistaken_for_ones_own(
    own_server: OwnServer, events: Events, tmp_path: Path, gate: int
) -> None:
    """L2: after a loss epochs repeat; the token tells the starts apart, for a chunk and for the finish."""
    copy_cold(own_server, tmp_path / "copy")
    pausing = command(own_server.dsn, events, pause_at=[EARLY_LINE])
    with Command(pausing) as old:
        wait_until_paused(old)
        with held_at(own_server, old, gate), frozen(old):
            go_back(own_server, tmp_path / "copy")
            with Command(pausing) as new:
                wait_until_paused(new)
                old.send(signal.SIGCONT)
                assert old.wait() == 76, old.output
                assert not stored(own_server, events).finished
                assert_went_on(own_server, new, events)


def test_a_run_that_had_finished_and_is_gone_in_part_is_done_again(
    own_server: OwnServer, events: Events, tmp_path: Path
) -> None:
    """F2: the command answered with 0; then the database went back, and the same command again makes it true."""
    with copied_early(own_server, events, tmp_path / "copy") as running:
        running.send(signal.SIGCONT)
        assert running.wait() == 0, running.output
    go_back(own_server, tmp_path / "copy")
    assert not stored(own_server, events).finished
    with Command(command(own_server.dsn, events)) as again:
        assert again.wait() == 0, again.output
    assert stored(own_server, events).epoch == 2
    assert_exact(own_server.dsn, [events])


class CrashAfter(Silent):
    """Crashes the server right after a chunk was acknowledged, and reads what is stored then."""

    def __init__(self, server: OwnServer, events: Events, chunk: int) -> None:
        self._server, self._events, self._left = server, events, chunk
        self.acknowledged = self.found = 0

    def committed(self, step: Step) -> None:
        """Count down to the chunk."""
        self._left -= 1
        if not self._left:
            self.acknowledged = step.position.lines
            self._server.server.crash()
            self._server.server.start()
            self.found = stored(self._server, self._events).lines


def test_no_acknowledged_chunk_is_lost_though_the_database_commits_asynchronously(
    own_server: OwnServer, events: Events
) -> None:
    """E4: a run makes its own commits durable. The first half shows that this server does lose the others."""
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        connection.execute("create table careless (n integer)")
        connection.execute(f"alter database {connection.info.dbname} set synchronous_commit = off")
        connection.execute("checkpoint")
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        connection.execute("insert into careless values (1)")
        own_server.server.crash()
    own_server.server.start()
    with psycopg.connect(own_server.dsn) as connection:
        assert connection.execute("select * from careless").fetchall() == []
    crash = CrashAfter(own_server, events, 7)
    what = order(job="settle", key="payment_id", amount="amount_cents", limits=Limits(chunk_rows=100))
    report = carry_out(events.path, what, dsn=own_server.dsn, observer=crash)
    assert crash.acknowledged == crash.found == 701
    assert report.exit_code == 0
    assert_exact(own_server.dsn, [events])
