"""Build a cluster and start its server; the caller holds the place's control lock."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from pgonce.errors import ConfigurationError, Unreachable
from pgonce.server import place as places
from pgonce.server import watch
from pgonce.server.find import Binaries
from pgonce.server.place import Account, Place, explained

PORT = 5432
"""The number in the socket's name only: every cluster has a socket folder of its own."""
MAINTENANCE_DATABASE = "postgres"
"""The database that initdb makes."""
READY_S_MAX = 120.0
"""Recovery replays at most some gigabytes of log (max_wal_size), which takes well under two minutes."""
ORPHAN_S_MAX = 30.0
"""An initdb or back-end that outlived its parent ends within a few seconds."""
LOG_BYTES_MAX = 10_000_000
"""A log of ten megabytes is still opened by any editor; at the next start it is renamed to server.log.1."""
LOG_TAIL_BYTES = 2000
"""The last lines of the log hold the reason why a server did not start."""

PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)
"""A path that PostgreSQL's lists of folders take as it is; others are quoted, and shown so."""

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "lc_messages": "C",
    "search_path": "public",
}
"""For new clusters; they stand in postgresql.conf, so that ALTER SYSTEM can change them.

The role is called as the schema of pgonce's tables is, which the usual search path would choose for the user's own.
"""


def build(place: Place, binaries: Binaries, *, throw_away: bool = False) -> None:
    """Make a new cluster in a temporary folder beside its final one and rename it when it is complete.

    Safe to re-run: what a killed build left is removed first.
    """
    with explained(place.folder), cluster_lock(place) as lock:
        for old in place.folder.glob(watch.PGDATA + ".new-*"):
            shutil.rmtree(old)
        new = Path(tempfile.mkdtemp(prefix=watch.PGDATA + ".new-", dir=place.folder))
        try:
            if place.account is not None:
                os.chown(new, place.account.uid, place.account.gid)
            _initdb(new, place, binaries, lock, throw_away=throw_away)
            new.rename(place.pgdata)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise


def start(place: Place, binaries: Binaries, settings: Mapping[str, str], *, port: int | None = None) -> None:
    """Start the server, or wait for one that is starting, until it takes connections.

    ``settings`` hold for this start only. ``port`` also listens on 127.0.0.1. Raises ConfigurationError for a folder
    this PostgreSQL cannot run, Unreachable when the server ends or is not ready in time.
    """
    check_major(place, binaries)
    if is_ready(place):
        return
    with explained(place.folder), cluster_lock(place) as lock:
        _remove_reused_pid_file(place)
        watch.remove_socket(place.folder)
        sockets = places.socket_folder(place)
        (place.folder / watch.SOCKET).write_text(str(sockets))
        _rotate(place.log)
        argv: list[str | Path] = [binaries.program("postgres"), "-D", place.pgdata]
        argv += _options(sockets, settings, port)
        said = spawn(argv, log=place.log, account=place.account, keep=(lock,))
    if not is_ready(place):
        said += _log_tail(place)
        raise Unreachable(
            f"the embedded server in {str(place.folder)!r} did not start: {said}\n{_remedy(said, place)} "
            f"The whole log is {str(place.log)!r}."
        )


def is_ready(place: Place) -> bool:
    """Tell whether the server takes connections, after waiting for one that is starting or ending."""
    deadline = time.monotonic() + READY_S_MAX
    while watch.is_up(place.folder):
        with contextlib.suppress(OSError):
            lines = (place.pgdata / "postmaster.pid").read_text().split("\n")
            if len(lines) > 7 and lines[7].strip() == "ready" and watch.postmaster_pid(place.pgdata) is not None:
                return True
        if time.monotonic() > deadline:
            raise Unreachable(
                f"the embedded server in {str(place.folder)!r} was neither ready nor gone within {READY_S_MAX:.0f} s "
                f"(it may still be recovering from a crash). Its log is {str(place.log)!r}; run again."
            )
        time.sleep(0.01)
    return False


def check_major(place: Place, binaries: Binaries) -> None:
    """Refuse a data folder of another major release than the programs."""
    major = data_major(place)
    if major != binaries.version[0]:
        raise ConfigurationError(
            f"the data folder {str(place.pgdata)!r} was made by PostgreSQL {major or 'of an unknown version'}, but "
            f"{str(binaries.bin_dir)!r} is PostgreSQL {binaries.version[0]}. Set PGONCE_PG_BIN to the programs of "
            f"PostgreSQL {major or '(see PG_VERSION there)'}, or set PGONCE_HOME to another folder; to move the data, "
            "dump it with the old programs and restore it with the new ones."
        )


def data_major(place: Place) -> int | None:
    """Return the major release that made the data folder, None if there is no cluster or no telling."""
    try:
        return int((place.pgdata / "PG_VERSION").read_text())
    except (OSError, ValueError):
        return None


def dsn_of(place: Place, *, port: int = PORT) -> str:
    """Return libpq's connection string of the server's socket, closed against PG* of the environment.

    The empty and default values are there because libpq would fill them in, PGHOSTADDR with another server's address.
    """
    return make_conninfo(
        host=(place.folder / watch.SOCKET).read_text(),
        port=port,
        user=place.user,
        dbname=place.database,
        hostaddr="",
        options="",
        sslmode="disable",
        gssencmode="disable",
        target_session_attrs="any",
    )


def server_version(place: Place) -> tuple[int, int]:
    """Connect once and return the server's version, the proof that it answers."""
    try:
        with psycopg.connect(dsn_of(place), connect_timeout=10) as connection:
            return divmod(connection.info.server_version, 10_000)
    except (psycopg.OperationalError, OSError) as error:
        raise Unreachable(
            f"the embedded server in {str(place.folder)!r} does not answer: {str(error).strip()} "
            f"Its log is {str(place.log)!r}; run again when the cause is gone."
        ) from error


@contextlib.contextmanager
def cluster_lock(place: Place) -> Iterator[int]:
    """Hold the lock that tells a live cluster, to be passed on to its processes; wait for orphans to end."""
    descriptor = watch.open_lock(place.folder / watch.CLUSTER)
    try:
        deadline = time.monotonic() + ORPHAN_S_MAX
        while not watch.try_lock(descriptor):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"processes of an earlier server still work in {str(place.folder)!r} after {ORPHAN_S_MAX:.0f} s. "
                    "Run again later, or end them (`ps -ef | grep postgres`)."
                )
            time.sleep(0.02)
        yield descriptor
    finally:
        os.close(descriptor)


def spawn(argv: list[str | Path], *, log: Path, account: Account | None, keep: tuple[int, ...]) -> str:
    """Start a program that outlives us: own session, orphaned at once, output to ``log``, descriptors ``keep`` open.

    Return what the shell said when it could not, else nothing.
    """
    script = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 &'
    return places.run(["/bin/sh", "-c", script, "sh", log, *argv], account, pass_fds=keep, umask=0o077).stderr


def _initdb(new: Path, place: Place, binaries: Binaries, lock: int, *, throw_away: bool) -> None:
    argv: list[str | Path] = [binaries.program("initdb"), "-D", new, "-U", place.user, "--auth-local=trust"]
    argv += ["--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums"]
    if binaries.version[0] >= 17:
        argv += ["--locale-provider=builtin", "--builtin-locale=C"]
    if throw_away:
        argv.append("--no-sync")
    _checked(argv, place, lock)
    lines = "".join(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
    _checked(["/bin/sh", "-c", 'cat >>"$0"', new / "postgresql.conf"], place, lock, text=lines)
    if place.database == MAINTENANCE_DATABASE:
        return
    single: list[str | Path] = [binaries.program("postgres"), "--single", "-F", "-j", "-D", new, MAINTENANCE_DATABASE]
    _checked(single, place, lock, text=f"create database {place.database};\n\n")


def _checked(argv: list[str | Path], place: Place, lock: int, *, text: str = "") -> None:
    try:
        done = places.run(argv, place.account, pass_fds=(lock,), umask=0o077, text=text)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"making a cluster in {str(place.folder)!r} took too long: {error}. Run again.") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-LOG_TAIL_BYTES:]
        raise ConfigurationError(
            f"no cluster could be made in {str(place.folder)!r}: `{shlex.join(map(str, argv[:1]))}` said: {said}\n"
            f"{_remedy(said, place)}"
        )


def _options(sockets: Path, settings: Mapping[str, str], port: int | None) -> list[str]:
    text = str(sockets)
    quoted = text if PLAIN_PATH.fullmatch(text) else '"' + text.replace('"', '""') + '"'
    every = {
        "port": str(port or PORT),
        "listen_addresses": "127.0.0.1" if port else "",
        "unix_socket_directories": quoted,
        "unix_socket_permissions": "0700",
        "logging_collector": "off",
    } | dict(settings)
    return [f"--{name}={value}" for name, value in every.items()]


def _remove_reused_pid_file(place: Place) -> None:
    """Remove a pid file whose number is another program's now, or a zombie's: PostgreSQL would refuse to start.

    All other stale pid files are left to PostgreSQL, which looks for its shared memory too.
    """
    pid_file = place.pgdata / "postmaster.pid"
    with contextlib.suppress(OSError, ValueError):
        pid = abs(int(pid_file.read_text().split("\n", 1)[0]))
        if pid != 0 and Path(f"/proc/{pid}").exists() and watch.postmaster_pid(place.pgdata) is None:
            pid_file.unlink()


def _rotate(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_name("server.log.1"))


def _log_tail(place: Place) -> str:
    try:
        return place.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip() or "it logged nothing."
    except OSError as error:
        return f"there is no log ({error.strerror})."


def _remedy(said: str, place: Place) -> str:
    told = any(words in said for words in ("No space left", "free disk space"))
    if told or shutil.disk_usage(places.nearest_existing(place.folder)).free < 1_000_000:
        return f"The disk of {str(place.folder)!r} is full: free some space, then run again."
    if "Read-only file system" in said or "Permission denied" in said:
        return f"{str(place.folder)!r} cannot be written: make it so, or set PGONCE_HOME (a lab: --dir) to another one."
    return "Run again when the cause is gone, or set PGONCE_HOME (a lab: --dir) to another folder."
