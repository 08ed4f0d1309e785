"""A proxy in front of PostgreSQL that fails a program at one chosen boundary, and counts the boundaries there are.

A **boundary** is a client message on which the server acts. Between boundaries bytes are forwarded as they come;
at each one ``on_boundary`` says what happens. What a client sees is always what a real server or network could do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgonce.crashtest.boundary import PASS, Action, Boundary, Fired
from pgonce.crashtest.greeting import Admit
from pgonce.crashtest.session import Points, Session, Upstream
from pgonce.crashtest.wire import Kind, WireError
from pgonce.errors import ConfigurationError

# A boundary is about 300 bytes; a program beyond this count is noise for a test that fails each of them.
LOG_BOUNDARIES_MAX = 100_000

# Linux: sockaddr_un.sun_path with its closing NUL.
SOCKET_PATH_BYTES_MAX = 107


OnBoundary = Callable[[Boundary], Action]


def admit_as_asked(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """Let every login in under the names it gave."""
    return parameters


class Proxy:
    """Forward connections to ``upstream`` (path of a Unix socket, or host and port), failing them where told.

    Listens on ``.s.PGSQL.<port>`` in ``listen_dir`` (made with mode 0700 if it is not there), or with None on a free
    port of 127.0.0.1. ``on_boundary`` is called by one thread at a time. ``points="statement"`` counts startup, Query,
    Sync, CopyDone, CopyFail and Terminate; ``"message"`` counts every Execute too, ``"pipeline"`` those that no Sync
    follows at once. ``listener`` is a socket that listens already, instead of ``listen_dir``. ``admit`` says under
    which names a login goes on to the server, or raises ``Refused``. ``side_dsn`` is a direct connection for the
    terminate deeds, which with ``side_database`` end backends of that database only. TLS is declined. Errors inside,
    also those of ``on_boundary``, are raised on leaving.

    Safe to re-run: yes; it keeps nothing but its socket, which is removed on leaving.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        on_boundary: OnBoundary = lambda _: PASS,
        listen_dir: Path | None = None,
        port: int = 5432,
        points: Points = "statement",
        side_dsn: str | None = None,
        side_database: str | None = None,
        listener: socket.socket | None = None,
        admit: Admit = admit_as_asked,
        only_watches: bool = False,
    ) -> None:
        self.upstream = upstream
        self.side_dsn = side_dsn
        self.side_database = side_database
        self.points = points
        self.only_watches = only_watches
        self.log: list[Boundary] = []
        self.fired: list[Fired] = []
        self.stopping = threading.Event()
        self.has_declined_tls = False
        self._on_boundary = on_boundary
        self._place = listen_dir
        self._port = port
        self._listener = listener
        self._admit = admit
        self._lock = threading.Lock()
        self._sessions: dict[threading.Thread, Session] = {}
        self._acceptor: threading.Thread | None = None
        self._connections = 0
        self._number = 0
        self._failure: BaseException | None = None

    @classmethod
    def of_dsn(
        cls,
        direct_dsn: str,
        *,
        on_boundary: OnBoundary = lambda _: PASS,
        listen_dir: Path | None = None,
        points: Points = "statement",
        only_watches: bool = False,
    ) -> Proxy:
        """Make a proxy in front of the server that libpq reaches by this connection string."""
        with psycopg.connect(direct_dsn) as connection:
            host, port = connection.info.host, connection.info.port
        upstream: Upstream = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        return cls(
            upstream,
            on_boundary=on_boundary,
            listen_dir=listen_dir,
            points=points,
            side_dsn=direct_dsn,
            only_watches=only_watches,
        )

    def dsn(self, direct_dsn: str) -> str:
        """Return the same connection string, led through this proxy."""
        given = conninfo_to_dict(direct_dsn)
        host = str(self._place) if self._place is not None else "127.0.0.1"
        dropped = ("hostaddr", "sslmode", "channel_binding")
        plain = make_conninfo("", **{name: value for name, value in given.items() if name not in dropped})
        return make_conninfo(plain, host=host, port=self._port, sslmode="disable", gssencmode="disable")

    def open(self) -> None:
        """Listen, without a thread yet: a process may be forked between this and `start`."""
        if self._listener is not None:
            return
        if self._place is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self._port = self._listener.getsockname()[1]
            return
        path = self._place / f".s.PGSQL.{self._port}"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise ConfigurationError(
                f"the socket path {str(path)!r} is longer than {SOCKET_PATH_BYTES_MAX} bytes; use a shorter folder"
            )
        self._place.mkdir(mode=0o700, exist_ok=True)
        if self._place.stat().st_mode & 0o077:
            raise ConfigurationError(f"the folder {str(self._place)!r} is open to other users; give it mode 0700")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def start(self) -> None:
        """Begin to accept connections."""
        self._acceptor = threading.Thread(target=self._accept, name="pgonce-proxy", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Cut every connection, end every thread, remove the socket. Safe to re-run: yes."""
        self.stopping.set()
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            if self._acceptor is not None:
                self._acceptor.join()
            self.close_inherited(listener)
            if self._place is not None:
                (self._place / f".s.PGSQL.{self._port}").unlink(missing_ok=True)
        self._cut_sessions()

    def _cut_sessions(self) -> None:
        with self._lock:
            sessions = dict(self._sessions)
        for thread, session in sessions.items():
            session.interrupt()
            thread.join()

    def close_inherited(self, listener: socket.socket | None = None) -> None:
        """Close the listening socket only; for a forked child, which must not answer in the proxy's place."""
        inherited = listener or self._listener
        if inherited is not None:
            inherited.close()

    def __enter__(self) -> Self:
        self.open()
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def is_serving(self) -> bool:
        """Say whether a connection is open."""
        with self._lock:
            return bool(self._sessions)

    def count_connection(self) -> int:
        """Give the next connection its number."""
        with self._lock:
            self._connections += 1
            return self._connections

    def admit(self, parameters: Mapping[str, str]) -> Mapping[str, str]:
        """Say under which names a login goes on to the server; raises Refused."""
        with self._lock:
            return self._admit(parameters)

    def begin(self, on_boundary: OnBoundary, *, admit: Admit = admit_as_asked, only_watches: bool = False) -> None:
        """Cut what is still connected, forget what was seen, and go by these functions from here on."""
        self._cut_sessions()
        with self._lock:
            self.log.clear()
            self.fired.clear()
            self.has_declined_tls = False
            self._number = self._connections = 0
            self._on_boundary, self._admit = on_boundary, admit
            self.only_watches = only_watches

    def settle(self, limit_s: float) -> None:
        """Wait until every connection has ended by itself, what was sent has been passed on; cut those that stay."""
        until = time.monotonic() + limit_s
        with self._lock:
            threads = list(self._sessions)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._cut_sessions()

    def raise_failure(self) -> None:
        """Raise what went wrong inside since the last call, if anything did."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def decide(
        self, connection: int, nth: int, kind: Kind, statement: str, *, status: str = "", statements: int = 1
    ) -> tuple[Boundary, Action]:
        """Number and log a boundary, and ask what to do there."""
        with self._lock:
            self._number += 1
            boundary = Boundary(connection, nth, self._number, kind, statement, status, statements)
            if len(self.log) < LOG_BOUNDARIES_MAX:
                self.log.append(boundary)
            return boundary, self._on_boundary(boundary)

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            session = Session(self, client)
            thread = threading.Thread(target=self._serve, args=(session,), name="pgonce-proxy-session", daemon=True)
            with self._lock:
                self._sessions[thread] = session
            thread.start()

    def _serve(self, session: Session) -> None:
        try:
            session.run()
        except (OSError, WireError) as error:
            # The client or the server went away, or is not speaking the protocol: its connection ends, as it would.
            if isinstance(error, WireError):
                self._failure = self._failure or error
        except BaseException as error:  # noqa: BLE001 (handed to the thread that leaves the proxy)
            self._failure = self._failure or error
        finally:
            session.close()
            with self._lock:
                self._sessions.pop(threading.current_thread(), None)
