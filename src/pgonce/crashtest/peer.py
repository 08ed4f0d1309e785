"""One end of a forwarded connection: its socket, what is still to be written to it, and its process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct

import psycopg

from pgonce.errors import ConfigurationError

# A socket's usual buffer; more would make the allocator map and unmap memory for every read.
RECEIVE_BYTES = 64 << 10

# So long the proxy listens to one side alone before it watches both; what the other says meanwhile, a notification
# or the end of its stream, comes that much later.
TURN_S = 0.005

# Ending a process and writing the last bytes are local and take milliseconds; longer means it is stuck.
SETTLE_S_MAX = 5.0

# Ending a backend is local and takes milliseconds; longer means that it is stuck.
TERMINATE_MS_MAX = 5_000


class Peer:
    """One socket and what is still to be written to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pending = bytearray()
        self.is_deaf = False
        self.mask = 0
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def pid(self) -> int:
        """Return the process at the other end of a Unix socket."""
        if self.sock.family != socket.AF_UNIX:
            raise ConfigurationError(
                "over TCP the client's process is unknown; name the pid to kill, or use listen_dir"
            )
        pid: int = struct.unpack("3i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid

    def aim(self, poller: select.poll, *, reads: bool) -> None:
        """Poll for what there is to do; a mask of nothing would still report a hang-up for ever."""
        mask = (select.POLLIN if reads else 0) | (select.POLLOUT if self.pending else 0)
        if mask == self.mask:
            return
        if mask:
            poller.register(self.sock, mask)
        else:
            poller.unregister(self.sock)
        self.mask = mask

    def limit_waits(self) -> None:
        """Bound `wait` in the kernel, which spares the call that would look first whether there is anything."""
        self.sock.setblocking(True)
        seconds, rest_s = divmod(TURN_S, 1)
        limit = struct.pack("@ll", int(seconds), int(rest_s * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def wait(self) -> bytes | None:
        """Return what comes, empty at the end of the stream, None if nothing came for `TURN_S`."""
        return self._receive(0)

    def receive(self) -> bytes | None:
        """Return what came, empty at the end of the stream, None if nothing is there."""
        return self._receive(socket.MSG_DONTWAIT)

    def _receive(self, flags: int) -> bytes | None:
        try:
            return self.sock.recv(RECEIVE_BYTES, flags)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, data: bytes) -> None:
        """Write now what can be written, keep the rest; a peer that is gone loses it, as on a network."""
        if self.pending or self.is_deaf:
            self.pending += b"" if self.is_deaf else data
            return
        written = self._write(data)
        if written < len(data) and not self.is_deaf:
            self.pending += memoryview(data)[written:]

    def flush(self) -> None:
        del self.pending[: self._write(self.pending)]

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self.sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self.is_deaf = True
            return len(data)

    def finish(self) -> None:
        """Write the rest before closing, within a limit."""
        with contextlib.suppress(OSError):
            self.sock.settimeout(SETTLE_S_MAX)
            self.sock.sendall(self.pending)
        self.pending.clear()

    def close_hard(self) -> None:
        """Close at once; over TCP the peer sees a reset, not an orderly end."""
        with contextlib.suppress(OSError):
            if self.sock.family != socket.AF_UNIX:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()


def kill(pid: int) -> None:
    """SIGKILL a process and wait until it is dead, so that it cannot notice that its connection ends."""
    if pid in (0, os.getpid()):
        raise ConfigurationError("the client to kill is the proxy's own process; run the client in one of its own")
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [], SETTLE_S_MAX)
        finally:
            os.close(fd)


def terminate(side_dsn: str | None, backend_pid: int, database: str | None) -> None:
    """End a backend. Where the server itself goes down at this moment, its backends are ended as well.

    Its number may be that of another database's backend by now: with ``database`` that one is left alone.
    """
    if side_dsn is None:
        raise ConfigurationError("terminating a backend needs side_dsn, a direct connection to the server")
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(side_dsn, autocommit=True) as connection:
        try:
            connection.execute(
                "select pg_terminate_backend(pid, %s::bigint) from pg_stat_activity"
                " where pid = %s::integer and (%s::text is null or datname = %s::text)",
                (TERMINATE_MS_MAX, backend_pid, database, database),
            )
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"the crash test may not end the program's backend: {str(error).strip()}. Name a role that may, or "
                "choose other faults than terminate with --fault"
            ) from error


def family(upstream: str | tuple[str, int]) -> socket.AddressFamily:
    """Return what kind of socket leads there."""
    if isinstance(upstream, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in upstream[0] else socket.AF_INET
