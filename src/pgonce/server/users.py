"""Share the user's embedded server between processes: join it, pin it, look at it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgonce.errors import Unreachable
from pgonce.server import cluster, watch
from pgonce.server import place as places
from pgonce.server.find import Binaries, find_binaries
from pgonce.server.place import Place, explained

CONTROL_S_MAX = 300.0
"""A first start makes the cluster and a start after a crash recovers it; both together stay far below this."""
DOWN_S_MAX = 60.0
"""The watcher gives a fast shutdown 15 s and an immediate one 10 s before it resorts to SIGKILL."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it lies and how to connect.

    ``data_dir`` is the folder asked for; ``pgdata`` is PostgreSQL's own (elsewhere if root cannot lend that).
    """

    data_dir: Path
    pgdata: Path
    socket_dir: Path
    port: int
    dsn: str
    version: tuple[int, int]
    pid: int


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known about the server of a data folder without touching it; ``users`` reads "pid command"."""

    data_dir: Path
    pgdata: Path
    exists: bool
    running: bool
    pinned: bool
    pid: int | None
    major: int | None
    dsn: str | None
    users: tuple[str, ...]


@contextlib.contextmanager
def running(data_dir: Path | None = None, *, binaries: Binaries | None = None) -> Iterator[Server]:
    """Use the embedded server of a data folder: made at first use, started if down, joined if up.

    It stops by itself soon after its last user ended, in whatever way, unless it is pinned.
    Raises ConfigurationError for a folder that cannot be used, Unreachable for a server that does not start.
    Safe to re-run: a start killed half-way is taken up from there.
    """
    place = places.locate(data_dir)
    places.make(place)
    with contextlib.ExitStack() as use:
        with control(place):
            use.enter_context(user_of(place))
            ensure_watcher(place, scratch=False)
            _ensure_server(place, binaries)
        yield _server(place, data_dir)


def pin(data_dir: Path | None = None, *, binaries: Binaries | None = None) -> Server:
    """Start the server and keep it up without users until ``unpin``.

    Safe to re-run: a pinned server stays pinned.
    """
    with running(data_dir, binaries=binaries) as server:
        marker = places.locate(data_dir).folder / watch.PINNED
        with explained(marker):
            marker.touch(mode=0o600)
        return server


def unpin(data_dir: Path | None = None, *, now: bool = False) -> tuple[str, ...]:
    """Take the pin away and wait for the server to stop; return the users that keep it up ("pid command").

    With users and without ``now`` it stays up until the last of them ended; with ``now`` it is stopped under them.
    Safe to re-run: without pin and server there is nothing to do.
    """
    return let_go(places.locate(data_dir), now=now)


def let_go(place: Place, *, now: bool) -> tuple[str, ...]:
    """Do what ``unpin`` does, for the server of a place."""
    if not place.folder.exists():
        return ()
    with control(place):
        (place.folder / watch.PINNED).unlink(missing_ok=True)
        users = _names_of_users(place)
        if (now or not users) and not watch.is_held(place.folder / watch.WATCH):
            watch.stop_server(place.folder)
            watch.remove_socket(place.folder)
    if users and not now:
        return users
    _wait_for_watcher(place, terminate=now)
    return users


def status(data_dir: Path | None = None) -> ServerStatus:
    """Look at the server of a data folder.

    Safe to re-run: it only looks.
    """
    place = places.locate(data_dir)
    pid = watch.postmaster_pid(place.pgdata)
    dsn = None
    if pid is not None:
        with contextlib.suppress(OSError):
            dsn = cluster.dsn_of(place)
    return ServerStatus(
        data_dir=_asked(data_dir),
        pgdata=place.pgdata,
        exists=place.pgdata.exists(),
        running=pid is not None,
        pinned=(place.folder / watch.PINNED).exists(),
        pid=pid,
        major=cluster.data_major(place),
        dsn=dsn,
        users=_names_of_users(place),
    )


@contextlib.contextmanager
def control(place: Place) -> Iterator[None]:
    """Hold the lock under which a server is joined, started and stopped."""
    path = place.folder / watch.CONTROL
    with explained(path):
        descriptor = watch.open_lock(path)
    try:
        deadline = time.monotonic() + CONTROL_S_MAX
        while not watch.try_lock(descriptor):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"another process has been starting or stopping the embedded server in {str(place.folder)!r} for "
                    f"{CONTROL_S_MAX:.0f} s. Look at it (`fuser {path}`), then run again."
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def user_of(place: Place) -> Iterator[None]:
    """Be a user until the end of the block or of the process; enter it under the control lock.

    A forked child that leaves the block is not the user: the parent still is.
    """
    process = os.getpid()
    path = place.folder / watch.USERS / f"{process}-{time.monotonic_ns()}"
    with explained(path):
        descriptor = watch.open_lock(path)
    try:
        is_locked = watch.try_lock(descriptor)
        assert is_locked, "a new file has no other holder"
        with explained(path):
            os.write(descriptor, f"{process} {Path(sys.argv[0]).name or 'python'}".encode(errors="replace"))
        yield
    finally:
        if os.getpid() == process:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(descriptor)


def ensure_watcher(place: Place, *, scratch: bool) -> None:
    """Start the watcher unless it lives; it gets its lock from us already locked, so that there is no gap."""
    path = place.folder / watch.WATCH
    if watch.is_held(path):
        return
    with explained(path):
        descriptor = watch.open_lock(path)
    try:
        is_locked = watch.try_lock(descriptor)
        assert is_locked, "only a watcher holds this lock, and it was free under the control lock"
        os.truncate(descriptor, 0)
        kind = "scratch" if scratch else "shared"
        argv: list[str | Path] = [sys.executable, "-I", "-S", "-B", str(watch.__file__), place.folder, kind]
        cluster.spawn([*argv, str(descriptor)], log=Path(os.devnull), account=None, keep=(descriptor,))
    finally:
        os.close(descriptor)


def _ensure_server(place: Place, binaries: Binaries | None) -> None:
    if not cluster.is_ready(place):
        binaries = places.reachable_binaries(binaries or find_binaries(), place.account)
        if not place.pgdata.exists():
            cluster.build(place, binaries)
        cluster.start(place, binaries, {})
    if not watch.is_held(place.folder / watch.WATCH):
        raise Unreachable(
            f"the watcher of the embedded server in {str(place.folder)!r} ended at once: {sys.executable!r} could not "
            f"run {watch.__file__!r}. Repair the installation, then run again."
        )


def _server(place: Place, data_dir: Path | None) -> Server:
    version = cluster.server_version(place)
    pid = watch.postmaster_pid(place.pgdata)
    if pid is None:
        raise Unreachable(f"the embedded server in {str(place.folder)!r} has just ended. Run again.")
    return Server(
        data_dir=_asked(data_dir),
        pgdata=place.pgdata,
        socket_dir=Path((place.folder / watch.SOCKET).read_text()),
        port=cluster.PORT,
        dsn=cluster.dsn_of(place),
        version=version,
        pid=pid,
    )


def _asked(data_dir: Path | None) -> Path:
    return Path(data_dir) if data_dir is not None else places.default_data_dir()


def _names_of_users(place: Place) -> tuple[str, ...]:
    names = []
    for file in watch.live_users(place.folder):
        with contextlib.suppress(OSError):
            names.append(file.read_text() or file.name)
    return tuple(names)


def _wait_for_watcher(place: Place, *, terminate: bool) -> None:
    path = place.folder / watch.WATCH
    deadline = time.monotonic() + DOWN_S_MAX
    while watch.is_held(path):
        number = path.read_text()
        if terminate and number:
            os.kill(int(number), signal.SIGTERM)
            terminate = False
        if time.monotonic() > deadline:
            raise Unreachable(
                f"the embedded server in {str(place.folder)!r} did not stop within {DOWN_S_MAX:.0f} s. "
                f"Its log is {str(place.log)!r}."
            )
        time.sleep(0.02)
