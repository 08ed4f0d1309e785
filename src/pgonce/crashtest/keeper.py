"""Keep the processes of one program under test. Runs as a process of its own, standard library only.

It is started by the crash test, starts the program, tells how it ended, and ends all that came of it. Everything that
the program starts and leaves behind becomes the keeper's child (PR_SET_CHILD_SUBREAPER), so nothing can hide from it
by a session of its own or by outliving its parent. When the crash test is gone, the keeper's sockets end; then it kills
what is left and ends too.

Two sockets: over the first a program is started and its end told, over the second, from another thread, it is killed.
Where it may, the keeper lives in a network of its own, whose only address is 127.0.0.1 with the proxy behind it. This
file is run by its path, hence it imports nothing of pgonce.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MESSAGE_BYTES_MAX = 4 << 20
"""An environment and an argument list are bounded by the kernel to about two megabytes."""
USUAL_PORT = 5432
"""The port that a server has unless it is told another."""
KILL_S_MAX = 10.0
"""A killed process is gone in milliseconds, unless the disk it writes to hangs."""

_SUBREAPER = 36
_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_REC_PRIVATE = 0x44000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
SOCKET_FOLDERS = ("/run/postgresql", "/var/run/postgresql")
"""Where the packages of the distributions let a server listen: hidden, so that no local server is reached by file."""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def isolate() -> None:
    """Move this process into a network of its own with a loopback, and hide the usual socket folders."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _checked(_libc.unshare(_NEWNET | _NEWNS), "unshare")
    else:
        _checked(_libc.unshare(_NEWUSER | _NEWNET | _NEWNS), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loopback:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack_from("h", fcntl.ioctl(loopback, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(loopback, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))
    _checked(_libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "mount")
    for folder in {os.path.realpath(folder) for folder in SOCKET_FOLDERS if os.path.isdir(folder)}:
        _checked(_libc.mount(b"none", folder.encode(), b"tmpfs", 0, b"mode=0755"), "mount")


def descendants() -> list[int]:
    """List every process that descends from this one, children before their own children."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                stat = Path(f"/proc/{entry}/stat").read_bytes()
                parents.setdefault(int(stat[stat.rindex(b")") + 2 :].split()[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        children = parents.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return " ".join(os.fsdecode(word) for word in words if word)[:200]
    return ""


class Keeper:
    """The loop of the keeping process."""

    def __init__(self, starts: socket.socket, kills: socket.socket) -> None:
        self.starts = starts
        self.kills = kills
        self.main: int | None = None
        self.has_children = False
        self.exit_code: int | None = None

    def run(self) -> None:
        """Do as told until the crash test is gone."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        for descriptor in (wake_read, self.starts.fileno(), self.kills.fileno()):
            poller.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor == wake_read:
                    os.read(wake_read, 4096)
                    self.reap()
                    continue
                channel = self.starts if descriptor == self.starts.fileno() else self.kills
                data = channel.recv(MESSAGE_BYTES_MAX)
                if not data:
                    self.kill_all()
                    return
                answer = self.obey(json.loads(data))
                if answer is not None:
                    tell(channel, answer)

    def obey(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """Carry out one order; the end of a program is told when it comes."""
        if order["do"] == "start":
            return self.start(order)
        if order["do"] == "who":
            return {"processes": [{"pid": pid, "name": _name_of(pid)} for pid in descendants()]}
        return {"killed": self.kill_all()}

    def start(self, order: dict[str, Any]) -> dict[str, Any]:
        """Start a program in a session of its own, its output into a file."""
        self.exit_code = None
        try:
            with open(order["output"], "ab") as output:
                process = subprocess.Popen(
                    order["argv"],
                    cwd=order["cwd"],
                    env=order["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            return {"error": error.strerror or str(error)}
        self.main = process.pid
        self.has_children = True
        process.returncode = 0  # reaped below, with all others
        return {"pid": process.pid}

    def reap(self) -> None:
        """Take note of processes that ended; tell the end of the program, and that nothing is left of it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self.has_children:
                    self.has_children = False
                    tell(self.starts, {"is_empty": True})
                return
            if pid == 0:
                return
            if pid == self.main:
                self.main = None
                self.exit_code = os.waitstatus_to_exitcode(status)
                tell(self.starts, {"exit_code": self.exit_code})

    def kill_all(self) -> int:
        """SIGKILL everything that descends from here until nothing does; return how many there were."""
        killed: set[int] = set()
        until = time.monotonic() + KILL_S_MAX
        while self.has_children and time.monotonic() < until:
            for pid in descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            self.reap()
            if self.has_children:
                time.sleep(0.001)
        return len(killed)


def tell(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one message; whether the crash test still hears it changes nothing."""
    with contextlib.suppress(OSError):
        channel.send(json.dumps(message).encode())


def main() -> None:
    """Serve over the two sockets whose numbers are the first arguments; listen on the port that is the third.

    A negative port takes the usual one in a network of its own, where nobody else has it, and a free one elsewhere.
    """
    starts, kills = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for channel in (starts, kills):
        os.set_inheritable(channel.fileno(), False)
    port, wants_isolation = int(sys.argv[3]), sys.argv[4] == "isolated"
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _checked(_libc.prctl(_SUBREAPER, 1, 0, 0, 0), "prctl")
    reason = ""
    if wants_isolation:
        try:
            isolate()
        except OSError as error:
            reason = str(error)
    if port < 0:
        port = USUAL_PORT if wants_isolation and not reason else 0
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError as error:
        tell(starts, {"error": f"cannot listen on port {port}: {error.strerror}"})
        return
    said = {"port": listener.getsockname()[1], "reason": reason, "pid": os.getpid()}
    socket.send_fds(starts, [json.dumps(said).encode()], [listener.fileno()])
    listener.close()
    Keeper(starts, kills).run()


if __name__ == "__main__":
    main()
