"""What the machine under the server does to ``Session.transaction``: a full disk, a failing disk, no room for anybody.

What is seen elsewhere stands in the table of test_policy_staged.py. A disk is made small with a tmpfs, which needs the
right to mount; system calls are made to fail with strace, which needs the right to trace. Without it a test is skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from faults.conftest import OwnServer
from faults.harness import wait_until
from faults.staging import (
    COMMITTED,
    DEADLINE_S,
    Stage,
    Told,
    beside,
    crash_within,
    stage_on,
    write_then,
)
from pgonce import server as embedded
from pgonce.errors import Unreachable
from pgonce.model.deadline import Deadline
from pgonce.model.policy import Verdict
from servers_plugin import chosen_binaries, create_database, drop_database

T, A, O = Verdict.TRANSIENT, Verdict.AMBIGUOUS, Verdict.OPERATOR  # noqa: E741

SMALL_DISK_BYTES = 2_000_000
TOO_MUCH = "insert into public.big select repeat('x', 1000000) from generate_series(1, 4)"


@contextlib.contextmanager
def small_disk(server: embedded.ScratchServer) -> Iterator[Path]:
    """Mount a small disk that belongs to the server's account; nothing is left of it."""
    folder = server.folder / "small"
    account = server._place.account
    owner = f",uid={account.uid},gid={account.gid}" if account else f",uid={os.getuid()}"
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES},mode=0700{owner}", "tmpfs", str(folder)]
    if shutil.which("mount") is None:
        pytest.skip("there is no mount program to make a small disk with")
    folder.mkdir()
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.splitlines()[0]}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    finally:
        folder.rmdir()


@pytest.fixture
def full(own_server: OwnServer) -> Iterator[Stage]:
    """Give a stage with a table on a disk that is soon full."""
    with stage_on(own_server.dsn) as stage, small_disk(own_server.server) as disk:
        stage.sql(f"create tablespace small location '{disk}'")
        try:
            stage.sql("create table big (t text) tablespace small")
            stage.sql("alter table big alter t set storage external")
            yield stage
        finally:
            stage.sql("drop table if exists big")
            stage.sql("drop tablespace small")


def test_53100_at_a_statement(full: Stage) -> None:
    """A table cannot grow: somebody has to make room, and no attempt is used up for it."""
    assert full.attempt(write_then(TOO_MUCH)) == Told(O, "53100", burns=False, kept=True)
    assert not full.is_applied()
    assert full.heals()


def test_53100_at_commit(full: Stage) -> None:
    """A deferred trigger fills the disk: an ERROR at COMMIT is a certain abort, tried again until there is room."""
    full.sql(
        "create function fill() returns trigger language plpgsql as $$ begin " + TOO_MUCH + "; return null; end $$;"
        " create constraint trigger fill after update on place deferrable initially deferred"
        " for each row execute function fill()"
    )
    assert full.attempt() == Told(T, "53100", burns=False, kept=False)
    assert not full.is_applied()
    full.sql("drop trigger fill on place")
    assert full.heals()


# System calls that fail inside COMMIT.


@contextlib.contextmanager
def injected(backend: int, what: str) -> Iterator[None]:
    """Make a system call of a backend fail, or kill it, from now on."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace to make system calls fail with")
    call = what.split(":")[0]
    argv = ["strace", "-p", str(backend), "-e", f"trace={call}", "-e", f"inject={what}", "-o", os.devnull]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        try:
            said = tracer.stderr.readline()
            if "attached" not in said:
                pytest.skip(f"no process can be traced here: {said.strip()}")
            yield
        finally:
            tracer.terminate()


@pytest.fixture(scope="module")
def sturdy() -> Iterator[embedded.ScratchServer]:
    """A server that really syncs, with room for few."""
    settings = {"fsync": "on", "max_connections": "6", "superuser_reserved_connections": "0"}
    with embedded.scratch(settings=settings, binaries=chosen_binaries()) as server:
        yield server


@pytest.fixture
def synced(sturdy: embedded.ScratchServer) -> Iterator[Stage]:
    """Give a stage on that server."""
    dsn = create_database(sturdy)
    with stage_on(dsn) as made:
        yield made
    sturdy.start()
    drop_database(sturdy, dsn)


@pytest.mark.parametrize(
    ("what", "sqlstate", "is_applied"),
    [
        ("fdatasync:error=EIO", "58030", True),
        ("pwrite64:error=ENOSPC", "53100", False),
        ("sendto:signal=SIGKILL", None, True),
    ],
    ids=[
        "PANIC, the log cannot be synced",
        "PANIC, the log cannot be written",
        "killed after COMMIT, before its answer",
    ],
)
def test_a_panic_in_commit(synced: Stage, what: str, sqlstate: str | None, is_applied: bool) -> None:
    """The SQLSTATE of a PANIC says nothing about the COMMIT: with one recovery brings it, with the other not."""
    with contextlib.ExitStack() as tracing, crash_within(synced.dsn):
        with synced.standing() as (told, backend):
            tracing.enter_context(injected(backend, what))
        assert told.result() == Told(A, sqlstate, burns=None, kept=False)
    assert synced.is_applied() is is_applied
    if not is_applied:
        assert synced.heals()


# No room for a connection.


def test_53300(synced: Stage) -> None:
    """A server that is full is asked until the deadline, which uses up no attempt; then it has a free place."""
    with contextlib.ExitStack() as taken, ThreadPoolExecutor(1) as pool:
        first = taken.enter_context(beside(synced.dsn))
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(beside(synced.dsn))
        with pytest.raises(Unreachable, match="too many clients"):
            synced.attempt(deadline_s=0.05)
        synced.said.clear()
        trying = pool.submit(synced.session.connect, Deadline.after(DEADLINE_S, time.monotonic))
        wait_until(lambda: bool(synced.said), "the session to say that it cannot connect yet")
        assert "too many clients" in synced.said[0]
        first.close()
        trying.result()
        assert synced.attempt() == COMMITTED
    assert synced.is_applied()
