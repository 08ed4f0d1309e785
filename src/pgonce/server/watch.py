"""Watch one server: stop it when its last user is gone. Runs as a process of its own, standard library only.

Everything about a server lies in one folder, its place. Four locks (flock, so that SIGKILL frees them) tell who lives:

``control.lock``  held while somebody joins or the server is stopped; whoever holds it sees no half-done change
``users/*``       one file a user, locked by the user's process for as long as it uses the server
``watch.lock``    locked by the watcher
``cluster.lock``  locked by initdb, the postmaster and every process it forks; free means that none of them is left

A user registers under ``control.lock``, and the watcher stops the server under ``control.lock`` after looking again
for users: whoever comes later finds neither watcher nor server and starts both. The watcher gives ``watch.lock``
back before ``control.lock``. Holders lock exclusively and lookers ask for a shared lock, so lookers never mistake
each other for a holder. This file is run by its path, hence it imports nothing of pgonce.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

CONTROL, WATCH, CLUSTER = "control.lock", "watch.lock", "cluster.lock"
USERS, PINNED, PGDATA, SOCKET = "users", "pinned", "pgdata", "socket"

POLL_S = 0.1
"""How often the watcher looks for users: a look costs some microseconds, and nobody notices a tenth of a second."""
LINGER_S = 0.5
"""How long an unused server stays for the next command of a script, which saves it the start."""
FAST_S_MAX = 15.0
"""A fast shutdown writes one checkpoint; what takes longer than this is stuck, and recovery makes good for it."""
IMMEDIATE_S_MAX = 10.0
"""After SIGQUIT the postmaster itself kills its processes within 5 seconds."""
REMOVALS_MAX = 40
"""Two seconds for a process to end that still writes into a folder which is to vanish."""
SOCKET_NAMES = ".s.PGSQL.*"


def open_lock(path: Path) -> int:
    """Open a lock file, made if missing, that only this user may open; return the descriptor, not yet locked."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def is_held(path: Path) -> bool:
    """Tell whether a living process holds the lock; a missing file is a free lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock if nobody has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def live_users(place: Path) -> list[Path]:
    """Return the files of the users that are alive."""
    try:
        files = sorted((place / USERS).iterdir())
    except FileNotFoundError:
        return []
    return [file for file in files if is_held(file)]


def postmaster_pid(pgdata: Path) -> int | None:
    """Return the process id of the live postmaster of this data folder; None for a missing or stale pid file."""
    try:
        pid = int((pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
    return pid if _is_postmaster(pid, pgdata) else None


def _is_postmaster(pid: int, pgdata: Path, *, certain: bool = False) -> bool:
    """Tell whether a process is the postmaster of this folder; ``certain``: its arguments must say so.

    A zombie has no arguments, and back-ends have a title instead. The arguments of any account can be read.
    """
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() != "postgres":
            return False
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    if b"-D" in arguments[:-1]:
        named = os.fsdecode(arguments[arguments.index(b"-D") + 1])
        return os.path.realpath(named) == os.path.realpath(pgdata)
    return not certain and arguments != [b""] and not arguments[0].startswith(b"postgres: ")


def is_up(place: Path) -> bool:
    """Tell whether any process of the cluster is alive, also one that is only starting or ending."""
    return is_held(place / CLUSTER) or postmaster_pid(place / PGDATA) is not None


def stop_server(place: Path, *, throw_away: bool = False) -> bool:
    """Stop the server and wait until its last process is gone; fast at first, then immediate; tell if it worked."""
    signals = [(signal.SIGQUIT, IMMEDIATE_S_MAX), (signal.SIGKILL, IMMEDIATE_S_MAX)]
    if not throw_away:
        signals.insert(0, (signal.SIGINT, FAST_S_MAX))
    for number, limit_s in signals:
        sent_to: int | None = None
        deadline = time.monotonic() + limit_s
        while is_up(place):
            pid = postmaster_pid(place / PGDATA)
            if pid is not None and pid != sent_to:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                sent_to = pid
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        else:
            return True
    return False


def remove_socket(place: Path) -> None:
    """Remove what a killed server left in its socket folder, and the folder itself."""
    folder = _socket_folder(place)
    if folder is not None:
        _remove_socket_folder(folder)
    (place / SOCKET).unlink(missing_ok=True)


def _socket_folder(place: Path) -> Path | None:
    try:
        folder = Path((place / SOCKET).read_text())
    except OSError:
        return None
    return folder if folder.is_absolute() else None  # a full disk may have cut it short


def _remove_socket_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in folder.glob(SOCKET_NAMES):
            file.unlink(missing_ok=True)
        folder.rmdir()


class Watcher:
    """The loop of the watching process."""

    def __init__(self, place: Path, *, scratch: bool, watch_lock: int) -> None:
        self.place = place
        self.scratch = scratch
        self.watch_lock = watch_lock
        self.told_to_stop = False
        self.sockets: Path | None = None

    def unused(self) -> bool:
        """Tell whether nobody needs the server now."""
        if self.told_to_stop:
            return True
        return not (self.place / PINNED).exists() and not live_users(self.place)

    def run(self) -> None:
        """Look for users until there are none, then end the server."""
        unused_since: float | None = None
        linger_s = 0.0 if self.scratch else LINGER_S
        while (control := _open_existing(self.place / CONTROL)) is not None:
            self.sockets = _socket_folder(self.place) or self.sockets
            if not self.unused():
                unused_since = None
            elif unused_since is None:
                unused_since = time.monotonic()
            due = unused_since is not None and (self.told_to_stop or time.monotonic() - unused_since >= linger_s)
            if due and try_lock(control) and self.unused():
                self.retire()
                os.close(control)
                return
            os.close(control)
            time.sleep(POLL_S)
        _end_lost_server(self.place / PGDATA)
        if self.sockets is not None:
            _remove_socket_folder(self.sockets)

    def retire(self) -> None:
        """End the server and clear up, under the control lock; give the watcher's own lock back."""
        stopped = stop_server(self.place, throw_away=self.scratch)
        if stopped:
            remove_socket(self.place)
            for file in (self.place / USERS).glob("*"):
                if not is_held(file):
                    file.unlink(missing_ok=True)
        if self.scratch:
            remove_place(self.place)
        os.close(self.watch_lock)


def remove_place(place: Path) -> None:
    """Delete a folder, again if a process that is just ending wrote or deleted something in it meanwhile."""
    for _ in range(REMOVALS_MAX):
        with contextlib.suppress(OSError):
            shutil.rmtree(place)
        if not place.exists():
            return
        time.sleep(0.05)


def _open_existing(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _end_lost_server(pgdata: Path) -> None:
    """End a server whose folder somebody deleted under it; it would notice only after a minute."""
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        if _is_postmaster(pid, pgdata, certain=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)


def main() -> None:
    """Watch the place named by the first argument until its server is no longer used."""
    place, kind, watch_lock = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    watcher = Watcher(place, scratch=kind == "scratch", watch_lock=watch_lock)

    def stop(_number: int, _frame: object) -> None:
        watcher.told_to_stop = True

    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    os.set_inheritable(watch_lock, False)
    os.truncate(watch_lock, 0)
    os.pwrite(watch_lock, str(os.getpid()).encode(), 0)
    watcher.run()


if __name__ == "__main__":
    main()
