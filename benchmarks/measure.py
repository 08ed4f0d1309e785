"""One measurement: a fresh copy of the tables, a checkpoint, then an action in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgonce.api import admin

TEMPLATE = "bench_template"

OTHERS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"

# The processes of the runs: nothing of one is in another's memory, and its peak is its own.
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Measured:
    """What an action took: seconds, rows, bytes of WAL, the peak memory of its process in MiB, and seconds of CPU."""

    seconds: float
    rows: int
    wal_bytes: int
    peak_mib: float
    client_cpu_s: float
    server_cpu_s: float

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table: medians over all rounds, the ratio to the floor by pairs of one round; CPU in us a row."""

    name: str
    rate: float
    ratio: float
    wal_bytes: float
    peak_mib: float
    client_us: float
    server_us: float


class Bench:
    """A server to measure on. Actions are functions of a module, given a dsn and what else they need."""

    def __init__(self, dsn: str, postmaster_pid: int) -> None:
        self._admin = dsn
        self._postmaster_pid = postmaster_pid
        self._drop("bench_now")
        self._drop(TEMPLATE)
        self._execute(sql.SQL("create database {}").format(sql.Identifier(TEMPLATE)))
        admin.init(make_conninfo(dsn, dbname=TEMPLATE))

    def measure(self, rows: int, action: Callable[..., None], *arguments: Any, before: Any = None) -> Measured:
        """Run an action on fresh tables, after ``before`` (an action with its arguments) prepared them."""
        self._drop("bench_now")
        name, template = sql.Identifier("bench_now"), sql.Identifier(TEMPLATE)
        self._execute(sql.SQL("create database {} template {}").format(name, template))
        dsn = make_conninfo(self._admin, dbname="bench_now")
        if before is not None:
            _apart(before[0], dsn, *before[1:])
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("vacuum analyze")
        self._execute(sql.SQL("checkpoint"))
        with psycopg.connect(dsn, autocommit=True) as connection:
            [(at,)] = connection.execute("select pg_current_wal_insert_lsn()").fetchall()
            before_s = self._server_cpu_s()
            seconds, peak_mib, client_cpu_s = _apart(action, dsn, *arguments)
            while connection.execute(OTHERS).fetchone() != (0,):
                time.sleep(0.01)
            server_cpu_s = self._server_cpu_s() - before_s
            [(wal,)] = connection.execute("select (pg_current_wal_insert_lsn() - %s::pg_lsn)::bigint", (at,)).fetchall()
        return Measured(seconds, rows, int(wal), peak_mib, client_cpu_s, server_cpu_s)

    def _server_cpu_s(self) -> float:
        """Say what the backends that have ended used: their postmaster has counted it."""
        with open(f"/proc/{self._postmaster_pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    def _drop(self, name: str) -> None:
        self._execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composable) -> None:
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(statement)


def _apart(action: Callable[..., None], *arguments: Any) -> tuple[float, float, float]:
    """Run an action in a process of its own; return the seconds it took, the process's peak memory, and its CPU."""
    here, there = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_timed, args=(there, action, arguments))
    process.start()
    there.close()
    try:
        seconds, peak_mib, cpu_s = here.recv()
    finally:
        process.join()
    return seconds, peak_mib, cpu_s


def _timed(answer: Connection, action: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    prepared = action(*arguments)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    prepared()
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    answer.send((seconds, _peak_mib(), cpu_s))


def _peak_mib() -> float:
    """Return the peak of this process's own memory; that of ``getrusage`` begins with its parent's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not tell the peak of a process's memory")


def interleaved(rounds: int, floor: str, actions: dict[str, Callable[[], Measured]]) -> list[Line]:
    """Measure each action once a round, in turn, so that what disturbs the machine disturbs all of them."""
    found: dict[str, list[Measured]] = {name: [] for name in actions}
    for number in range(rounds):
        for name, action in actions.items():
            found[name].append(action())
            print(f"  round {number + 1}: {name}: {found[name][-1].rate:,.0f}/s", flush=True)
    return [
        Line(
            name,
            median(one.rate for one in measured),
            median(one.rate / base.rate for one, base in zip(measured, found[floor], strict=True)),
            median(one.wal_bytes / one.rows for one in measured),
            median(one.peak_mib for one in measured),
            median(one.client_cpu_s / one.rows * 1e6 for one in measured),
            median(one.server_cpu_s / one.rows * 1e6 for one in measured),
        )
        for name, measured in found.items()
    ]
