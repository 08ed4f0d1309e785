"""PgBouncer in transaction mode before a test's server, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

# It listens within milliseconds.
START_S_MAX = 20.0

# Fewer server connections than clients, so that clients really take turns on them.
SERVER_CONNECTIONS = 2

PROGRAM = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


@dataclass(frozen=True, slots=True)
class Pooler:
    """A running pooler: the dsn through it, and the direct one."""

    dsn: str
    direct: str
    pid: int


@contextlib.contextmanager
def pooler(direct: str) -> Iterator[Pooler]:
    """Run PgBouncer in transaction mode before the database of a dsn; it is ended with the block."""
    assert PROGRAM is not None
    place = conninfo_to_dict(direct)
    if not str(place.get("host", "")).startswith("/"):
        pytest.skip("the pooler's tests need a server with a socket")
    with tempfile.TemporaryDirectory(prefix="pgonce-pooler-") as name:
        folder = Path(name)
        port = _free_port()
        (folder / "users.txt").write_text(f'"{place["user"]}" ""\n')
        (folder / "pgbouncer.ini").write_text(_configuration(folder, port, place))
        account: dict[str, str | int] = {}
        if os.geteuid() == 0:
            # The server's socket lies in a folder that only its own account enters.
            owner = Path(str(place["host"])).stat()
            account = {"user": owner.st_uid, "group": owner.st_gid}
            for path in (folder, *folder.iterdir()):
                os.chown(path, owner.st_uid, owner.st_gid)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [PROGRAM, str(folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                extra_groups=[] if account else None,
                **account,  # user and group are numbers, extra_groups is given apart
            )
        dsn = make_conninfo(
            "", host="127.0.0.1", port=port, dbname=place["dbname"], user=place["user"], sslmode="disable"
        )
        try:
            _wait_until_up(dsn, process, folder / "log")
            yield Pooler(dsn, direct, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=START_S_MAX)


def _die_with_parent() -> None:
    """Have the kernel end this process with the one that runs the tests, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _configuration(folder: Path, port: int, place: dict[str, object]) -> str:
    return f"""[databases]
{place["dbname"]} = host={place["host"]} port={place["port"]} dbname={place["dbname"]} user={place["user"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder / "users.txt"}
pool_mode = transaction
default_pool_size = {SERVER_CONNECTIONS}
max_client_conn = 50
server_reset_query_always = 0
server_tls_sslmode = disable
"""


def _wait_until_up(dsn: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the pooler does not answer: {error}\n{log.read_text()}") from error
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
