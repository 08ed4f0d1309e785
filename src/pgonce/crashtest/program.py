"""Start the program under test, wait for it within a limit, and end everything that came of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgonce.crashtest import keeper
from pgonce.errors import ConfigurationError, Inconclusive

# A keeper starts within a tenth of a second; on a machine that is drowning it may take seconds.
KEEPER_S_MAX = 30.0

# Between two looks at whether a worker has done its work; a look costs some milliseconds.
UNTIL_S = 0.1


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: its exit code (None: it had to be ended), how long it took, and what outlived it."""

    exit_code: int | None
    took_s: float
    left_behind: tuple[str, ...] = ()

    @property
    def timed_out(self) -> bool:
        """Say whether the time limit ended it."""
        return self.exit_code is None

    @property
    def is_success(self) -> bool:
        """Say whether it ended by itself and said that all is well."""
        return self.exit_code == 0


class Programs:
    """One keeper process and the programs it starts, one at a time."""

    def __init__(
        self, starts: socket.socket, kills: socket.socket, process: subprocess.Popen[bytes], said: Mapping[str, Any]
    ) -> None:
        self._starts = starts
        self._kills = kills
        self._process = process
        self._killing = threading.Lock()
        self._is_over = True
        self.port = int(said["port"])
        self.not_isolated_because = str(said["reason"])

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path) -> None:
        """Start a program. Raises ConfigurationError if it cannot be started."""
        self._is_over = False
        order = {"do": "start", "argv": list(argv), "env": dict(env), "cwd": str(cwd), "output": str(output)}
        self._starts.send(json.dumps(order).encode())
        answer = self._hear(KEEPER_S_MAX)
        if answer is None or "error" in answer:
            reason = "the process that keeps it does not answer" if answer is None else answer["error"]
            raise ConfigurationError(f"cannot start {argv[0]!r}: {reason}")

    def wait(self, limit_s: float, *, until: Callable[[], bool] | None = None) -> Ended:
        """Wait until the program and all that it started have ended; end them when the limit is over.

        ``until`` is asked now and then whether a program that never ends by itself has done its work; then it is ended
        as if it had.
        """
        began = time.monotonic()
        code: int | None = None
        while (left_s := began + limit_s - time.monotonic()) > 0:
            heard = self._hear(left_s if until is None else min(left_s, UNTIL_S))
            if heard is None:
                if until is not None and until():
                    self.end()
                    return Ended(0, time.monotonic() - began)
                continue
            if "exit_code" in heard:
                code = int(heard["exit_code"])
            elif "is_empty" in heard:
                self._is_over = True
                return Ended(code, time.monotonic() - began)
        names = self.who()
        self.end()
        return Ended(code if not names else None, time.monotonic() - began, names)

    def has_ended(self, moment_s: float) -> bool:
        """Wait a moment; say whether nothing is left of the program."""
        heard = self._hear(moment_s)
        self._is_over = self._is_over or (heard is not None and "is_empty" in heard)
        return self._is_over

    def end(self) -> None:
        """Kill what is left of the program and wait until it is gone."""
        self.kill()
        until = time.monotonic() + KEEPER_S_MAX
        while not self.has_ended(0.1):
            if time.monotonic() > until:
                raise Inconclusive("the program under test cannot be killed; its processes hang in the kernel")

    def kill(self) -> int:
        """SIGKILL the program with everything it started; return how many processes that were. Thread-safe."""
        with self._killing:
            self._kills.send(json.dumps({"do": "kill"}).encode())
            return int(json.loads(self._kills.recv(keeper.MESSAGE_BYTES_MAX) or b'{"killed": 0}')["killed"])

    def who(self) -> tuple[str, ...]:
        """Name the processes that live now."""
        return tuple(one["name"] or str(one["pid"]) for one in self._processes())

    def process_of(self, client: socket.socket) -> int:
        """Return the process at the other end of a connection over 127.0.0.1. Raises Inconclusive if there is none."""
        wanted = f"{_hex_address(client.getpeername())} {_hex_address(client.getsockname())}"
        table = Path(f"/proc/{self._process.pid}/net/tcp").read_text()
        inodes = [words[9] for line in table.splitlines() if " ".join((words := line.split())[1:3]) == wanted]
        for one in self._processes() if inodes else []:
            with contextlib.suppress(OSError):
                for descriptor in Path(f"/proc/{one['pid']}/fd").iterdir():
                    if re.fullmatch(rf"socket:\[{inodes[0]}\]", os.readlink(descriptor)):
                        return int(one["pid"])
        raise Inconclusive("the process at the client's end of the connection was not found")

    def close(self) -> None:
        """End the program and its keeper. Safe to re-run: yes."""
        for channel in (self._starts, self._kills):
            channel.close()
        self._process.wait()

    def _processes(self) -> list[dict[str, Any]]:
        with self._killing:
            self._kills.send(json.dumps({"do": "who"}).encode())
            found: list[dict[str, Any]] = json.loads(self._kills.recv(keeper.MESSAGE_BYTES_MAX))["processes"]
            return found

    def _hear(self, limit_s: float) -> dict[str, Any] | None:
        self._starts.settimeout(limit_s)
        try:
            data = self._starts.recv(keeper.MESSAGE_BYTES_MAX)
        except TimeoutError:
            return None
        if not data:
            raise Inconclusive("the process that keeps the program under test has ended; somebody may have killed it")
        heard: dict[str, Any] = json.loads(data)
        return heard


@contextlib.contextmanager
def programs(*, isolate: bool, port: int | None) -> Iterator[tuple[Programs, socket.socket]]:
    """Start a keeper; yield it and the socket on which the proxy has to listen for its programs.

    ``port`` is the port of that socket; None takes the usual one in a network of its own, else a free one. When the
    block or this process ends, the programs and the keeper end too.
    """
    ours_starts, its_starts = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours_kills, its_kills = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as opened:
        for end in (its_starts, its_kills):
            opened.callback(end.close)
        numbers = (its_starts.fileno(), its_kills.fileno())
        made = _spawn(numbers, port=port, isolate=isolate)
        opened.close()
        ours_starts.settimeout(KEEPER_S_MAX)
        data, descriptors, _, _ = socket.recv_fds(ours_starts, keeper.MESSAGE_BYTES_MAX, 1)
    said = json.loads(data or b'{"error": "the process that keeps it ended at once"}')
    if "error" in said:
        made.wait()
        for channel in (ours_starts, ours_kills):
            channel.close()
        raise ConfigurationError(f"cannot run programs: {said['error']}. Choose another port with --listen.")
    kept = Programs(ours_starts, ours_kills, made, said)
    listener = socket.socket(fileno=descriptors[0])
    listener.settimeout(None)
    try:
        yield kept, listener
    finally:
        kept.close()
        listener.close()


def _spawn(numbers: tuple[int, int], *, port: int | None, isolate: bool) -> subprocess.Popen[bytes]:
    chosen = port if port is not None else -1
    argv = [sys.executable, "-I", "-S", "-B", keeper.__file__, *map(str, numbers), str(chosen)]
    return subprocess.Popen(
        [*argv, "isolated" if isolate else "open"],
        pass_fds=numbers,
        stdin=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _hex_address(address: tuple[str, int]) -> str:
    host, port = address
    return f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}"
