"""SIGKILL the command, its backend or the server anywhere in a run; the same command again makes the end exact."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from faults.harness import wait_until
from faults.kills import (
    CHUNK_GATE,
    COMMAND_S_MAX,
    Command,
    Events,
    Kill,
    Tally,
    Watcher,
    assert_exact,
    command,
    drive,
    install_gates,
    spread,
    wait_until_paused,
    write_events,
)

SAMPLE = ["start"] * 2 + ["progress"] * 6 + ["commit kept", "commit lost", "finish lost", "finish kept"]
CAMPAIGN = (
    ["start"] * 8
    + ["progress"] * 74
    + ["commit kept"] * 6
    + ["commit lost"] * 6
    + ["finish lost"] * 5
    + ["finish kept"]
)

ACCOUNTS = "create table account (account text primary key, balance bigint not null default 0)"
SETTLE = """
update account as a set balance = a.balance + c.cents
from (select account, sum(amount_cents) as cents from chunk group by account) as c where a.account = c.account;
"""


@pytest.fixture
def gated(database: str) -> str:
    """The dsn of a fresh database with the schema and the gates."""
    install_gates(database)
    return database


def kill_over_one_file(dsn: str, folder: Path, kinds: list[str], *, rows: int, workers: int) -> Tally:
    """Kill a run over one file again and again, check the end, and return what was done."""
    events, tally = write_events(folder / "big.csv", range(rows)), Tally()
    drive(dsn, command(dsn, events, "--workers", str(workers)), events, spread(kinds, events, seed=7), tally)
    assert_exact(dsn, [events])
    assert tally.kills.total() == len(kinds), tally
    return tally


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_at_any_instant_a_run_ends_exact(workers: int, gated: str, tmp_path: Path) -> None:
    """L4, E8: right after the start, between commits, inside COMMIT with both outcomes, and while finishing."""
    tally = kill_over_one_file(gated, tmp_path, SAMPLE, rows=8_000, workers=workers)
    assert tally.between >= 0.6 * tally.kills.total(), tally


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [1, 4])
def test_campaign_of_100_kills_over_100_000_rows(workers: int, gated: str, tmp_path: Path) -> None:
    """The same at length; the numbers are printed."""
    tally = kill_over_one_file(gated, tmp_path, CAMPAIGN, rows=100_000, workers=workers)
    print(f"\none file, {workers} workers: {tally}")
    assert tally.kills["commit kept"] > 0 < tally.kills["commit lost"], f"inconclusive: {tally}"
    assert tally.between >= 60, tally


def kill_two_at_once(dsn: str, folder: Path, *, rows: int, kills: int) -> Tally:
    """Kill two runs at once over files that share a third of their events in other order, and check the end."""
    third = rows // 3
    files = [
        write_events(folder / "first.csv", range(2 * third)),
        write_events(folder / "second.csv", range(3 * third, third, -1)),
    ]
    tallies = [Tally(), Tally()]
    with ThreadPoolExecutor(2) as pool:
        lanes = [
            pool.submit(
                drive,
                dsn,
                command(dsn, file),
                file,
                [Kill("progress", int(file.last_line / (kills + 1) * number)) for number in range(1, kills + 1)],
                tally,
                seed=number,
            )
            for number, (file, tally) in enumerate(zip(files, tallies, strict=True))
        ]
        for lane in lanes:
            lane.result()
    assert_exact(dsn, files)
    both = Tally(began_s=tallies[0].began_s)
    for tally in tallies:
        both.kills += tally.kills
        both.starts += tally.starts
        both.ended_first += tally.ended_first
        both.between += tally.between
    assert both.between >= 0.6 * both.kills.total() > 0, both
    return both


def test_two_runs_over_shared_events_end_exact_though_both_are_killed(database: str, tmp_path: Path) -> None:
    """I4, E4: each shared event is applied by one run and is a replay in the other."""
    kill_two_at_once(database, tmp_path, rows=9_000, kills=4)


@pytest.mark.campaign
def test_campaign_of_two_runs_at_once(database: str, tmp_path: Path) -> None:
    """The same at length; the numbers are printed."""
    print(f"\ntwo files at once: {kill_two_at_once(database, tmp_path, rows=150_000, kills=50)}")


def race_on_one_file(dsn: str, folder: Path, *, rows: int, kills: int) -> Tally:
    """Keep two processes on one file, kill the one that owns it again and again, and check the end."""
    events, tally = write_events(folder / "big.csv", range(rows)), Tally()
    argv = command(dsn, events, "--wait", str(COMMAND_S_MAX))
    running: list[Command] = []
    with Watcher(dsn) as watcher, ExitStack() as stack:
        for number in range(1, kills + 1):
            while len(running) < 2:
                running.append(stack.enter_context(Command(argv)))
                tally.starts += 1
            line = int(events.last_line / (kills + 1) * number)
            wait_until(lambda: watcher.progress(events).lines >= line, f"line {line}", limit_s=COMMAND_S_MAX)  # noqa: B023
            at = watcher.progress(events)
            [owner] = [one for one in running if at.owner.endswith(f":{one.pid}")]
            owner.kill()
            running.remove(owner)
            tally.kills["owner"] += 1
            tally.between += at.lines < events.last_line
        for one in running:
            assert one.wait() == 0, one.output
    assert_exact(dsn, [events])
    return tally


def test_a_second_process_on_the_same_file_goes_on_when_the_first_is_killed(database: str, tmp_path: Path) -> None:
    """L4: with --wait it takes the run over as soon as the owner is gone."""
    assert race_on_one_file(database, tmp_path, rows=5_000, kills=3).kills.total() == 3


@pytest.mark.campaign
def test_campaign_of_a_race_on_one_file(database: str, tmp_path: Path) -> None:
    """The same at length; the numbers are printed."""
    print(f"\ntwo processes on one file: {race_on_one_file(database, tmp_path, rows=100_000, kills=50)}")


@pytest.fixture
def standing(gated: str, tmp_path: Path) -> Iterator[tuple[Events, Command, Watcher]]:
    """A run that stands inside COMMIT after some chunks."""
    events = write_events(tmp_path / "big.csv", range(3_000))
    with Watcher(gated) as watcher, Command(command(gated, events, pause_at=[301])) as running:
        wait_until_paused(running)
        with watcher.shut(CHUNK_GATE):
            running.send(signal.SIGCONT)
            wait_until(lambda: watcher.waiting(CHUNK_GATE), "a COMMIT at the gate")
            yield events, running, watcher


def test_a_live_owner_is_left_alone_and_named(gated: str, standing: tuple[Events, Command, Watcher]) -> None:
    """Exit 76 with the owner's name; nothing of the run moved."""
    events, running, watcher = standing
    before = watcher.progress(events)
    with Command(command(gated, events)) as second:
        assert second.wait() == 76, second.output
        assert f":{running.pid}" in second.output
    assert watcher.progress(events) == before


def test_a_frozen_owner_that_was_taken_over_commits_nothing_more(gated: str, tmp_path: Path) -> None:
    """L2: frozen between two chunks, taken over on purpose, and thawed: its next chunk is refused and it exits 76."""
    events = write_events(tmp_path / "big.csv", range(6_000))
    with Watcher(gated) as watcher, Command(command(gated, events, pause_at=[301])) as zombie:
        wait_until_paused(zombie)
        with Command(command(gated, events, "--take-over")) as second:
            wait_until(lambda: watcher.progress(events).epoch == 2, "the take-over")
            zombie.send(signal.SIGCONT)
            assert zombie.wait() == 76, zombie.output
            assert second.wait() == 0, second.output
    assert_exact(gated, [events])


def with_accounts(dsn: str, folder: Path, *, rows: int) -> tuple[Events, list[str]]:
    """Make a table of accounts and an effect on it; return the events and the command."""
    with psycopg.connect(dsn) as connection:
        connection.execute(ACCOUNTS)
        connection.execute("insert into account select 'a' || n from generate_series(0, 6) as n")
    (folder / "settle.sql").write_text(SETTLE)
    events = write_events(folder / "big.csv", range(rows))
    return events, command(dsn, events, "--effect", str(folder / "settle.sql"))


def assert_balances(dsn: str, events: Events) -> None:
    """Compare every account with the sum of its events."""
    expected: dict[str, int] = {f"a{number}": 0 for number in range(7)}
    for name, cents in events.cents.items():
        expected[f"a{int(name[1:]) % 7}"] += cents
    with psycopg.connect(dsn) as connection:
        assert dict(connection.execute("select account, balance from account").fetchall()) == expected


def test_killed_inside_the_users_effect_the_balances_are_exact(gated: str, tmp_path: Path) -> None:
    """E1: killed while the effect's statement waits for a row, at other instants, and inside COMMIT."""
    events, argv = with_accounts(gated, tmp_path, rows=5_000)
    with Watcher(gated) as watcher, psycopg.connect(gated) as blocker:
        for chunks in (1, 2):
            with Command(argv) as running:
                before = watcher.progress(events)
                wait_until(lambda: watcher.progress(events).epoch > before.epoch, "the start")  # noqa: B023
                wait_until(lambda: watcher.progress(events).chunks >= chunks, "its first chunks")  # noqa: B023
                blocker.execute("select from account where account = 'a3' for update")
                wait_until(lambda: _blocked(watcher, "update account%"), "the effect to wait for the account")
                running.kill()
            blocker.rollback()
    tally = Tally()
    kinds = ["progress"] * 3 + ["commit kept", "commit lost"]
    with Watcher(gated) as watcher:
        done = watcher.progress(events).lines
    kills = [kill for kill in spread(kinds, events, seed=3) if kill.line > done]
    drive(gated, argv, events, kills, tally)
    assert_exact(gated, [events])
    assert_balances(gated, events)


def _blocked(watcher: Watcher, query: str) -> bool:
    return bool(
        watcher.rows(
            "select from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"
            " and trim(e'\\n' from query) like %s",
            query,
        )
    )


def test_backends_terminated_under_a_live_run_do_not_end_it(database: str, tmp_path: Path) -> None:
    """R1: one start reconnects each time and goes on from what it knows to be committed."""
    events = write_events(tmp_path / "big.csv", range(12_000))
    with Watcher(database) as watcher, Command(command(database, events)) as running:
        for number in range(1, 21):
            line = events.last_line // 22 * number
            wait_until(lambda: watcher.progress(events).lines >= line, f"line {line}")  # noqa: B023
            for pid in watcher.backends():
                watcher.rows("select pg_terminate_backend(%s)", pid)
        assert running.wait() == 0, running.output
        assert watcher.progress(events).epoch == 1
    assert_exact(database, [events])
