"""Throw-away servers for tests and the lab: they vanish with the process that made them."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgonce.errors import ConfigurationError, Unreachable
from pgonce.server import cluster, users, watch
from pgonce.server import place as places
from pgonce.server.find import Binaries, find_binaries
from pgonce.server.place import Place, explained

GONE_S_MAX = 30.0
"""The watcher stops a scratch server at once; deleting its folder takes some milliseconds a hundred files."""


class ScratchServer:
    """A throw-away server with its whole life in the caller's hands."""

    def __init__(self, place: Place, binaries: Binaries, settings: Mapping[str, str], port: int | None) -> None:
        self._place = place
        self._binaries = binaries
        self._settings = dict(settings)
        self._port = port
        self._dsn: str | None = None
        self._password = secrets.token_hex(16)

    @property
    def dsn(self) -> str:
        """Return the connection string of the Unix socket, user and database ``pgonce``."""
        if self._dsn is None:
            self._dsn = cluster.dsn_of(self._place, port=self._port or cluster.PORT)
        return self._dsn

    @property
    def tcp_dsn(self) -> str:
        """Return the connection string over 127.0.0.1 with its password; only with ``tcp=True``."""
        if self._port is None:
            raise ConfigurationError("this scratch server has no TCP port: make it with scratch(tcp=True).")
        return make_conninfo(self.dsn, host="127.0.0.1", password=self._password)

    @property
    def folder(self) -> Path:
        """Return the folder that holds everything of this server."""
        return self._place.folder

    @property
    def pgdata(self) -> Path:
        """Return PostgreSQL's data folder."""
        return self._place.pgdata

    @property
    def log_path(self) -> Path:
        """Return the server's log."""
        return self._place.log

    @property
    def version(self) -> tuple[int, int]:
        """Return (major, minor) of the programs."""
        return self._binaries.version

    def program(self, name: str) -> Path:
        """Return the path of a program that came with the server, for instance ``psql``."""
        return self._binaries.program(name)

    @property
    def postmaster_pid(self) -> int:
        """Return the postmaster's process id. Raises Unreachable when the server is down."""
        pid = watch.postmaster_pid(self._place.pgdata)
        if pid is None:
            raise Unreachable(f"the scratch server in {str(self.folder)!r} is down; call start() first.")
        return pid

    def start(self) -> None:
        """Start the server and wait until it takes connections. Safe to re-run: a running one is left alone."""
        with users.control(self._place):
            cluster.start(self._place, self._binaries, self._settings, port=self._port)

    def stop(self) -> None:
        """Stop the server in order, ending sessions. Safe to re-run: a stopped one stays stopped."""
        self._stop(throw_away=False)

    def crash(self) -> None:
        """End the server at once without checkpoint, as a power cut would; the next start recovers."""
        self._stop(throw_away=True)

    def restart(self) -> None:
        """Stop in order, then start."""
        self.stop()
        self.start()

    def allow_password(self) -> None:
        """Give the user its password for TCP, which no other user of the machine knows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                sql.SQL("alter role {} password {}").format(
                    sql.Identifier(self._place.user), sql.Literal(self._password)
                )
            )

    def _stop(self, *, throw_away: bool) -> None:
        with users.control(self._place):
            if not watch.stop_server(self.folder, throw_away=throw_away):
                raise Unreachable(f"the scratch server in {str(self.folder)!r} does not stop; see {self.log_path}.")


@contextlib.contextmanager
def scratch(
    *,
    settings: Mapping[str, str] | None = None,
    binaries: Binaries | None = None,
    parent: Path | None = None,
    tcp: bool = False,
    place: Place | None = None,
) -> Iterator[ScratchServer]:
    """Run a new, empty server until the end of the block or of the process, SIGKILL included; then nothing is left.

    ``settings`` are server settings for every start; ``parent`` is where its folder is made (by default the temporary
    folder; elsewhere if we are root and our server's account cannot reach it); ``tcp`` also listens on a free port of
    127.0.0.1; ``place`` is a fresh folder that was made already, with its account. Raises ConfigurationError or
    Unreachable as ``running`` does.
    """
    account = place.account if place is not None else places.server_account()
    binaries = places.reachable_binaries(binaries or find_binaries(), account)
    place = place or Place(_new_folder(parent, account), account)
    server = ScratchServer(place, binaries, settings or {}, _free_port() if tcp else None)
    with contextlib.ExitStack() as use:
        use.callback(_wait_until_gone, place, watch.open_lock(place.folder / watch.WATCH), os.getpid())
        with users.control(place):
            use.enter_context(users.user_of(place))
            users.ensure_watcher(place, scratch=True)
            cluster.build(place, binaries, throw_away=True)
        server.start()
        if tcp:
            server.allow_password()
        yield server


def _new_folder(parent: Path | None, account: places.Account | None) -> Path:
    candidates = [parent or Path(tempfile.gettempdir())]
    if account is not None:
        candidates = [*candidates, Path("/tmp"), places.ROOTS_BASE]  # noqa: S108 (mkdtemp below it)
        candidates = [folder for folder in candidates if places.can_reach(account, places.nearest_existing(folder))]
    base = candidates[0] if candidates else places.ROOTS_BASE
    with explained(base):
        base.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="pgonce-scratch-", dir=base)))
        if account is not None:
            folder.chmod(0o711)
        (folder / watch.USERS).mkdir(mode=0o700)
    return folder


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_gone(place: Place, watch_lock: int, process: int) -> None:
    """Wait until the watcher deleted the folder and ended; do it here if there is no watcher.

    A forked child that leaves the block does nothing: the server is its parent's.
    """
    if os.getpid() != process:
        return
    deadline = time.monotonic() + GONE_S_MAX
    while not watch.try_lock(watch_lock) and time.monotonic() < deadline:
        time.sleep(0.01)
    if place.folder.exists():
        watch.stop_server(place.folder, throw_away=True)
        watch.remove_place(place.folder)
    os.close(watch_lock)
