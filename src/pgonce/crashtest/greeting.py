"""The beginning of a connection: what the client wants, and under which names it is let in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from pgonce.crashtest import wire
from pgonce.crashtest.wire import Packet

Admit = Callable[[Mapping[str, str]], Mapping[str, str]]


class Refused(Exception):
    """A login that is not let in; the client is told why, as a server would."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def read_packet(sock: socket.socket, on_declined: Callable[[Packet], None]) -> bytes | None:
    """Read the startup packet, declining encryption; None if the client left before it."""
    while True:
        head = _read(sock, 4)
        if len(head) < 4:
            return None
        packet = head + _read(sock, wire.packet_length(head) - 4)
        kind = wire.packet_kind(packet)
        if kind not in (Packet.SSL, Packet.GSSENC):
            return packet
        on_declined(kind)
        sock.sendall(b"N")


def admitted(sock: socket.socket, packet: bytes, admit: Admit) -> bytes | None:
    """Return the startup packet to send, as the proxy wants it; None if the login was refused."""
    named = wire.startup_parameters(packet)
    try:
        wanted = admit(named)
    except Refused as refused:
        sock.sendall(wire.error_response(refused.sqlstate, str(refused), severity="FATAL"))
        return None
    return packet if wanted == named else wire.startup(wanted)


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data
