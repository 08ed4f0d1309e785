"""One connection through the proxy: forward both ways, and do at a boundary what was decided."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pgonce.crashtest import wire
from pgonce.crashtest.boundary import Action, Boundary, Deed, Fired
from pgonce.crashtest.clientstream import ClientStream, Segment
from pgonce.crashtest.greeting import admitted, read_packet
from pgonce.crashtest.peer import Peer, family, kill, terminate
from pgonce.crashtest.wire import Kind, Packet, Splitter
from pgonce.errors import ConfigurationError

# A side that does not read makes the other side wait, as a full socket buffer would.
PENDING_BYTES_MAX = 1 << 20

# What the server is sent in place of a statement: it cannot be parsed, so nothing runs and the transaction is aborted
# by the server itself, in the simple and the extended protocol alike.
_FAULT = "pgonce_injected_fault"
_READY, _KEY, _ERROR, _COPY_IN, _COPY_BOTH, _TAG, _EMPTY, _SUSPENDED = b"ZKEGWCIs"
_DONE = frozenset((_TAG, _EMPTY, _SUSPENDED))
_NOTED = _DONE | {_READY, _KEY, _ERROR, _COPY_IN, _COPY_BOTH}
_AUTHENTICATION = ord("R")

Upstream = str | tuple[str, int]
Points = Literal["statement", "message", "pipeline"]


class Host(Protocol):
    """What a session needs to know of its proxy."""

    upstream: Upstream
    side_dsn: str | None
    side_database: str | None
    points: Points
    only_watches: bool
    fired: list[Fired]
    stopping: threading.Event
    has_declined_tls: bool

    def count_connection(self) -> int: ...

    def admit(self, parameters: Mapping[str, str]) -> Mapping[str, str]: ...

    def decide(
        self, connection: int, nth: int, kind: Kind, statement: str, *, status: str = "", statements: int = 1
    ) -> tuple[Boundary, Action]: ...


@dataclass(slots=True)
class _Hold:
    """A fault that waits for the server: the answer from ``mine`` outstanding answers on is withheld."""

    boundary: Boundary
    action: Action
    mine: int
    is_withholding: bool
    answer: str = ""


class Session:
    """A client's connection and the server's, served by one thread until either ends."""

    def __init__(self, host: Host, client: socket.socket) -> None:
        self._host = host
        self._client = Peer(client)
        self._server: Peer | None = None
        self._stream = ClientStream(each_execute=host.points == "message", pipelined=host.points == "pipeline")
        self._replies = Splitter()
        self._rest: Iterator[Segment] = iter(())
        self._hold: _Hold | None = None
        self._rewrite: str | None = None
        self._turn: Peer | None = None
        self._is_copying = False
        self._is_paused = False
        self._is_over = False
        self._connection = 0
        self._nth = 0
        self._awaited = 0
        self._sent_executes = 0
        self._done_executes = 0
        self._backend_pid: int | None = None
        self._status = ""

    def run(self) -> None:
        """Serve until the end. Raises OSError when a side goes away in the greeting, WireError for foreign bytes."""
        packet = asked = read_packet(self._client.sock, self._declined)
        if packet is not None and wire.packet_kind(packet) is not Packet.CANCEL:
            packet = admitted(self._client.sock, packet, self._host.admit)
        if packet is None:
            return
        upstream = self._host.upstream
        server = socket.socket(family(upstream))
        self._server = Peer(server)
        server.connect(upstream)
        if wire.packet_kind(packet) is Packet.CANCEL:
            server.sendall(packet)
            server.recv(1)
            return
        self._client.limit_waits()
        self._server.limit_waits()
        self._connection = self._host.count_connection()
        named = wire.startup_parameters(asked or packet)  # as the program calls it, the same in every run
        text = f"user={named.get('user', '')} database={named.get('database', '')}"
        self._rest = iter((Segment(packet, Kind.STARTUP, text, ready=1),))
        self._advance()
        self._loop(self._server)

    def _declined(self, what: Packet) -> None:
        self._host.has_declined_tls |= what is Packet.SSL

    def interrupt(self) -> None:
        """Wake the session's thread up with the end of both streams; for another thread."""
        for side in (self._client, self._server):
            if side is not None:
                with contextlib.suppress(OSError):
                    side.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both sockets."""
        for side in (self._client, self._server):
            if side is not None:
                side.close_hard()

    @property
    def _is_logging_in(self) -> bool:
        """Say whether a fault waits for the login, whose passwords go both ways until the server lets the client in."""
        hold = self._hold
        return hold is not None and hold.boundary.kind is Kind.STARTUP and not hold.is_withholding

    def _loop(self, server: Peer) -> None:
        """Wait for the side whose turn it is, in one system call; where both may speak, poll both."""
        poller = select.poll()
        while not self._is_over:
            side = self._turn
            if side is None:
                self._poll(poller, server)
                continue
            data = side.wait()
            if data is None:
                self._turn = None
            else:
                self._take(side, data)

    def _poll(self, poller: select.poll, server: Peer) -> None:
        client = self._client
        is_read = not self._is_paused or self._is_logging_in
        client.aim(poller, reads=is_read and len(server.pending) < PENDING_BYTES_MAX)
        server.aim(poller, reads=len(client.pending) < PENDING_BYTES_MAX)
        client_fd = client.sock.fileno()
        for fd, event in poller.poll():
            side = client if fd == client_fd else server
            if event & select.POLLOUT:
                side.flush()
            if not event & ~select.POLLOUT or self._is_over:
                continue
            data = side.receive()
            if data is not None:
                self._take(side, data)

    def _take(self, side: Peer, data: bytes) -> None:
        """Pass on what a side said, and see whose turn it is then.

        After a statement that nothing else is in flight with it is the server's, until it has answered; then it is the
        client's. After anything else both may speak: while a fault is in progress, in a COPY, in a pipeline.
        """
        was_answered = self._awaited <= 0
        if side is self._client:
            self._from_client(data)
            self._turn = self._server if was_answered and self._awaited == 1 else None
        else:
            self._from_server(data)
            if self._awaited <= 0:
                self._turn = self._client
        if self._turn is not None and not self._is_plain():
            self._turn = None

    def _is_plain(self) -> bool:
        server = self._server
        is_held = self._is_paused or self._hold is not None or self._rewrite is not None
        is_pending = self._client.pending or (server is not None and server.pending)
        return not is_held and not is_pending and self._status != "" and not self._is_copying

    def _from_client(self, data: bytes) -> None:
        if not data:
            if self._server is not None:
                self._server.finish()
            self._is_over = True
        elif not self._is_paused:
            is_sent = self._host.only_watches
            if is_sent:  # nothing will be done to it, so the server works on it while it is looked at
                self._to_server(data)
            self._rest = self._stream.feed(data)
            self._advance(is_sent=is_sent)
        elif self._is_logging_in:
            self._to_server(data)

    def _advance(self, *, is_sent: bool = False) -> None:
        """Forward what is read from the client, up to a boundary that has to wait; ``is_sent``: it was forwarded."""
        ready: list[bytes] = []
        for segment in self._rest:
            if segment.kind is None:
                self._count(segment)
                ready.append(segment.data)
                continue
            self._nth += 1
            boundary, action = self._host.decide(
                self._connection,
                self._nth,
                segment.kind,
                segment.statement,
                status=self._status,
                statements=segment.statements,
            )
            if action.deed is Deed.PASS:
                self._count(segment)
                ready.append(segment.data)
                continue
            if is_sent:
                raise ConfigurationError("a proxy that only watches was told to do something at a boundary")
            self._to_server(b"".join(ready))
            ready.clear()
            self._perform(segment, boundary, action)
            if self._is_paused or self._is_over:
                return
        if not is_sent:
            self._to_server(ready[0] if len(ready) == 1 else b"".join(ready))

    def _count(self, segment: Segment) -> None:
        self._awaited += segment.ready
        self._sent_executes += segment.executes

    def _to_server(self, data: bytes) -> None:
        if data and self._server is not None:
            self._server.send(data)

    def _forward(self, segment: Segment) -> None:
        self._count(segment)
        self._to_server(segment.data)

    def _perform(self, segment: Segment, boundary: Boundary, action: Action) -> None:
        if action.deed is Deed.DELAY:
            self._host.stopping.wait(action.delay_s)
            self._fired(boundary, action)
            self._forward(segment)
        elif action.deed is Deed.ERROR_BEFORE:
            self._fail(segment, boundary, action)
        elif action.deed.is_after:
            is_execute = segment.kind is Kind.EXECUTE
            self._is_paused = True
            self._forward(segment)
            if is_execute:
                self._to_server(wire.frame(b"H"))
            self._hold = _Hold(boundary, action, 0 if is_execute else 1, segment.kind is not Kind.STARTUP)
            self._settle_hold()
        else:
            self._strike(boundary, action)

    def _fail(self, segment: Segment, boundary: Boundary, action: Action) -> None:
        """Let the server abort the transaction in place of the statement."""
        if not boundary.can_fail:
            self._forward(segment)
            return
        self._fired(boundary, action)
        if segment.kind is Kind.STARTUP:
            self._client.send(wire.error_response(action.sqlstate, "injected by the crash test", severity="FATAL"))
            self._client.finish()
            self._is_over = True
            return
        self._awaited += segment.ready
        end = wire.frame(b"S") if segment.ready else b""
        if boundary.is_commit and segment.ready and not segment.is_partial:
            self._is_paused = True
            self._hold = _Hold(boundary, action, 1, is_withholding=True)
            self._to_server(wire.extended("rollback"))
            return
        self._rewrite = action.sqlstate
        if segment.ends_copy:
            self._to_server(wire.frame(b"f", f"{_FAULT}\0".encode()) + end)
        else:
            self._to_server(wire.frame(b"P", f"\0{_FAULT}\0\0\0".encode()) + end)

    def _fired(self, boundary: Boundary, action: Action, answer: str = "") -> None:
        self._host.fired.append(Fired(boundary, action, answer))

    def _from_server(self, data: bytes) -> None:
        if not data:
            if self._hold is not None and self._hold.action.deed.is_after:
                self._release_hold(self._hold)
            self._client.finish()
            self._is_over = True
            return
        if self._hold is None and self._rewrite is None:
            buffer, spans = self._replies.feed(data, only=_NOTED)
            self._client.send(buffer)
            for tag, start, _ in spans:
                self._note(tag, buffer, start)
            return
        buffer, spans = self._replies.feed(data)
        for tag, start, end in spans:
            passed = self._watch(tag, buffer[start:end])
            if passed and not self._is_over:
                self._client.send(passed)

    def _note(self, tag: int, buffer: bytes, start: int) -> None:
        """Keep count of what the server has answered."""
        if tag in _DONE:
            self._done_executes += 1
        elif tag == _READY:
            self._awaited -= 1
            self._status = chr(buffer[start + 5])
            self._sent_executes = self._done_executes = 0
            self._is_copying = False
        elif tag == _KEY:
            self._backend_pid = struct.unpack_from("!i", buffer, start + 5)[0]
        elif tag == _ERROR:
            self._done_executes = self._sent_executes
        elif tag in (_COPY_IN, _COPY_BOTH):
            self._is_copying = True
            # The server ignores the Sync that came with an extended COPY, and answers the one after CopyDone.
            self._awaited -= tag == _COPY_IN and self._stream.is_extended

    def _watch(self, tag: int, piece: bytes) -> bytes:
        """Look at one frame of the server while a fault is in progress; return what the client gets instead."""
        hold = self._hold
        is_mine = hold is not None and hold.is_withholding and self._awaited <= hold.mine
        if tag in _NOTED:
            self._note(tag, piece, 0)
        if hold is None:
            return self._rewritten(tag, piece)
        if is_mine and tag in (_TAG, _ERROR):
            hold.answer = wire.error_fields(piece[5:])["C"] if tag == _ERROR else piece[5:-1].decode()
        if tag == _AUTHENTICATION and piece[5:9] == b"\0\0\0\0":
            hold.is_withholding = is_mine = True
        self._settle_hold(is_copying=tag in (_COPY_IN, _COPY_BOTH))
        return b"" if is_mine else piece

    def _rewritten(self, tag: int, piece: bytes) -> bytes:
        if tag == _ERROR and _FAULT.encode() in piece and self._rewrite is not None:
            sqlstate, self._rewrite = self._rewrite, None
            return wire.error_response(sqlstate, "injected by the crash test; the statement was not run")
        return piece

    def _settle_hold(self, *, is_copying: bool = False) -> None:
        """Go on with the fault once the server has answered all it was sent."""
        hold = self._hold
        if hold is None or hold.boundary.kind is Kind.TERMINATE:
            return
        if hold.boundary.kind is Kind.EXECUTE:
            is_answered = self._awaited <= 0 and self._done_executes >= self._sent_executes
        else:
            is_answered = self._awaited <= 0 or is_copying
        if is_answered:
            self._release_hold(hold)

    def _release_hold(self, hold: _Hold) -> None:
        self._hold = None
        if hold.action.deed.is_after:
            self._strike(hold.boundary, hold.action, hold.answer)
            return
        error = wire.error_response(hold.action.sqlstate, "injected by the crash test; the transaction is rolled back")
        self._client.send(error + wire.ready_for_query("I"))
        self._is_paused = False
        self._advance()

    def _strike(self, boundary: Boundary, action: Action, answer: str = "") -> None:
        """Cut, kill or terminate; the client's message is not forwarded, or its answer was withheld."""
        self._fired(boundary, action, answer)
        self._is_paused = True
        is_terminate = action.deed in (Deed.TERMINATE_BEFORE, Deed.TERMINATE_AFTER)
        if is_terminate and self._backend_pid is not None:
            terminate(self._host.side_dsn, self._backend_pid, self._host.side_database)
            return  # what the server says last still reaches the client; then its end of stream ends the session
        if action.deed in (Deed.KILL_CLIENT_BEFORE, Deed.KILL_CLIENT_AFTER):
            kill(action.pid or self._client.pid)
        if action.call is not None:
            action.call(self._client.sock)
        self._is_over = True
        self.close()
