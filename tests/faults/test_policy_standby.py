"""A standby is reached instead of the primary, and is promoted: nothing is refused for good, and nothing applied twice.

What is seen elsewhere stands in the table of test_policy_staged.py.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import psycopg
import pytest

from conftest import make_clerk
from faults.harness import wait_until
from faults.staging import TABLES, Stage, Told, beside, stage_on, wait_accepts, write
from pgonce import server as embedded
from pgonce.model.policy import Verdict
from pgonce.server import cluster
from pgonce.server import place as places
from servers_plugin import chosen_binaries

T = Verdict.TRANSIENT

SETTINGS = {"fsync": "off"}

# The session asks a standby this often before the promotion: once more than the first try.
TRIES = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary with the tables, and a standby that follows it."""

    primary: embedded.ScratchServer
    standby: embedded.ScratchServer


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Make a standby by pg_basebackup."""
    binaries = chosen_binaries()
    if not binaries.program("pg_basebackup").exists():
        pytest.skip("these programs of PostgreSQL have no pg_basebackup")
    with (
        embedded.scratch(settings=SETTINGS, binaries=binaries) as primary,
        embedded.scratch(settings=SETTINGS, binaries=binaries) as standby,
    ):
        with beside(primary.dsn) as connection:
            connection.execute(TABLES)
        standby.stop()
        shutil.rmtree(standby.pgdata)
        follow(primary, standby, binaries)
        yield Pair(primary, standby)


def follow(primary: embedded.ScratchServer, standby: embedded.ScratchServer, binaries: embedded.Binaries) -> None:
    """Copy a running server into a stopped one's folder and start it as a standby; `start` would wait for a primary."""
    place = standby._place
    binaries = places.reachable_binaries(binaries, place.account)
    options = ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", primary.dsn]
    if place.account is not None:
        place.pgdata.mkdir(mode=0o700)
        shutil.chown(place.pgdata, place.account.uid, place.account.gid)
    done = places.run([binaries.program("pg_basebackup"), "-D", place.pgdata, *options], place.account)
    assert done.returncode == 0, done.stderr
    with cluster.cluster_lock(place) as lock:
        argv = [binaries.program("postgres"), "-D", place.pgdata]
        argv += cluster._options(places.socket_folder(place), SETTINGS, None)
        assert cluster.spawn(argv, log=place.log, account=place.account, keep=(lock,)) == ""
    wait_accepts(standby.dsn)


@contextlib.contextmanager
def stage_of(server: embedded.ScratchServer) -> Iterator[Stage]:
    """Give a stage on a server that has the tables."""
    with stage_on(server.dsn, prepared=True) as stage:
        yield stage


def count(dsn: str) -> int:
    """Read how often the work was done, without a lock, which a standby does not give."""
    with beside(dsn) as connection:
        [(found,)] = connection.execute("select n from place").fetchall()
    return int(found)


def test_a_standby_is_asked_again_until_it_is_promoted(pair: Pair) -> None:
    """BEGIN READ WRITE is refused with 0A000: no attempt is used up, each try connects anew, and then it is applied."""
    with stage_of(pair.standby) as stage:
        for _ in range(TRIES):
            assert stage.attempt() == Told(T, "0A000", burns=False, kept=False)
        tries: list[float] = []

        def sleep(seconds: float) -> None:
            tries.append(seconds)
            time.sleep(seconds)

        clerk = replace(make_clerk(pair.standby.dsn), sleep=sleep)
        with contextlib.closing(clerk.session), ThreadPoolExecutor(1) as pool:
            done = pool.submit(clerk.do, write)
            wait_until(lambda: len(tries) >= TRIES, "the clerk to have asked the standby")
            with beside(pair.standby.dsn) as connection:
                assert connection.execute("select pg_promote()").fetchone() == (True,)
            done.result()
        assert stage.is_applied()
        assert count(pair.primary.dsn) == 0


def test_the_primary_is_found_behind_a_standby(pair: Pair) -> None:
    """An address that leads to a standby first, and to the primary the next time, is asked again and gets there."""
    with stage_of(pair.standby) as stage:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):  # 25006, but BEGIN says it first
            stage.sql("update place set n = n")
        assert stage.attempt() == Told(T, "0A000", burns=False, kept=False)
        stage.session.target = replace(stage.session.target, conninfo=pair.primary.dsn)
        stage.dsn = pair.primary.dsn
        assert stage.heals()
        wait_until(lambda: count(pair.standby.dsn) == 1, "the standby to follow")
