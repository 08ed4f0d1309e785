"""Fail task queues and loading tools that others wrote while they do the money task, and say what became of the money.

    make peers ARGS="procrastinate dbos"
    PYTHONPATH=tests python -m zoo.peers [--faults cut-after,kill] [--all] [NAME[/VARIANT] ...]

Each folder in ``foreign`` is one of them: ``worker.py VARIANT prepare`` makes its tables and hands in three payments,
and ``worker.py VARIANT work`` is the worker that is failed. ``peer.toml`` names the variants and the query that says
when nothing is left to do; a worker never ends by itself, so it is told to stop then. Only the ledger is judged.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgonce import server as embedded
from zoo import books, catalogue, running
from zoo.catalogue import FAULTS, Program
from zoo.failing import RERUNS_MAX, Cage, Place, Tried, Watch
from zoo.judge import SETTINGS
from zoo.running import Ended

ROOT = catalogue.ROOT / "foreign"
VENVS = catalogue.ROOT.parents[1] / ".make" / "peers"

# A faulted worker that has not drained its queue by then is stopped; the next one gets the longer time.
FAULTED_S_MAX = 6.0
AGAIN_S_MAX = 8.0

# A program that ends by itself is given the time that it takes.
WHOLE_S_MAX = 25.0

STOP_S_MAX = 3.0

# Added to what became of the money: the tool did not come to its end, and does not by itself.
STUCK = " (stuck)"

LINE_CHARACTERS_MAX = 400
LOOK_S = 0.05

# Points that nothing of a job depends on: reading of catalogues, settings and time, and what is only a hint.
NOISE = "|".join(
    (
        "^(<(startup|terminate|sync|query)>|;|rollback)",
        r"^select (pg_|current_|version|typname|t\.|exists|enumlabel)|pg_database",
        "^(show|set|listen|unlisten|savepoint|release|with recursive typeinfo)",
        "information_schema|application_versions|_schedules|set_config",
    )
)


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the tools: its folder, its interpreter, the variant, and how to see that it has nothing left to do."""

    name: str
    variant: str
    folder: Path
    python: Path
    until: str
    ledger: str
    is_tcp: bool
    again_s_max: float

    @property
    def schema(self) -> str:
        """The ledger's table; dlt makes its own."""
        return (ROOT / ("guarded.sql" if self.variant.endswith("guarded") else "schema.sql")).read_text()

    def command(self, what: str) -> tuple[str, ...]:
        """The worker's command line."""
        return (str(self.python), "worker.py", self.variant, what)


def peers(names: list[str]) -> list[Peer]:
    """Read the peers and variants that are named, all if none is."""
    found = []
    for path in sorted(ROOT.glob("*/peer.toml")):
        table = tomllib.loads(path.read_text())
        name = path.parent.name
        for variant in table["variants"]:
            if not names or name in names or f"{name}/{variant}" in names:
                found.append(
                    Peer(
                        name=name,
                        variant=variant,
                        folder=path.parent,
                        python=VENVS / name / "bin" / "python",
                        until=table.get("until", ""),
                        ledger=table.get("ledger", "ledger"),
                        is_tcp=table.get("tcp", False),
                        again_s_max=table.get("again_s", AGAIN_S_MAX if "until" in table else WHOLE_S_MAX),
                    )
                )
    return found


class PeerCage(Cage):
    """A cage whose base is a copy of a prepared database, and whose program may have to be told to stop."""

    def __init__(self, peer: Peer, dsn: str, folder: Path) -> None:
        self._peer = peer
        self._again_s_max = peer.again_s_max
        self._limit_s = self._again_s_max
        self._server = make_conninfo(dsn, dbname="postgres")
        self._name = str(conninfo_to_dict(dsn)["dbname"])
        self._prepare()
        super().__init__(_program(peer), dsn, folder, is_forked=False)

    def lay(self) -> None:
        """Make the working folder anew; this is also the first moment to say that the proxy has to be met over TCP."""
        super().lay()
        if self._peer.is_tcp:
            self.listen_dir = None

    def _prepare(self) -> None:
        base = f"{self._name}_base"
        with psycopg.connect(self._server, autocommit=True) as connection:
            for name in (self._name, base):
                connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(base)))
        base_dsn = make_conninfo(self._server, dbname=base)
        with psycopg.connect(base_dsn, autocommit=True) as connection:
            connection.execute(self._peer.schema)
        with tempfile.TemporaryDirectory(prefix="peer-") as folder:
            environment = running.environment_for(base_dsn)
            command = self._peer.command("prepare")
            place = Path(folder) / "work"
            _program(self._peer).lay(place)
            subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True, timeout=60)

    def reset(self) -> None:
        """Make the database and the working folder anew."""
        if self._own is not None:
            self._own.close()
        with psycopg.connect(self._server, autocommit=True) as connection:
            name, base = sql.Identifier(self._name), sql.Identifier(f"{self._name}_base")
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(name))
            connection.execute(sql.SQL("create database {} template {}").format(name, base))
        self.lay()

    def look(self) -> books.State:
        """Read the ledger alone, which may not be there yet."""
        found = super().look()
        return {"ledger": found.get(self._peer.ledger, books.Table(Counter(), ()))}

    def wait_for(self, pid: int, is_pending: Callable[[], bool]) -> bool:
        """Wait until the worker has ended, or has nothing left to do, or its time is over; then tell it to stop."""
        deadline = time.monotonic() + self._limit_s
        is_done = False
        while not is_done and time.monotonic() < deadline:
            is_pending()
            if running.wait(pid, LOOK_S, lambda: False):
                return True
            is_done = self.is_drained()
        running.signal_group(pid, signal.SIGTERM)
        running.wait(pid, STOP_S_MAX, is_pending)
        return is_done

    def watch(self, place: Place | None = None) -> Watch:
        """Name points without values: these tools write numbers and keys of their own into statements."""
        return Watch(place, spell=spelled)

    def is_drained(self) -> bool:
        """Say whether the tool itself has nothing left to do."""
        return bool(self._peer.until) and self.own.execute(self._peer.until).fetchone() == (True,)

    def through_proxy(self, watch: Watch, fault: str = "", when: str = "") -> tuple[Ended, Watch]:
        """Give a faulted worker less time: it may be waiting for what never comes."""
        self._limit_s = FAULTED_S_MAX if fault and self._peer.until else self._again_s_max
        ended, watch = super().through_proxy(watch, fault, when)
        self._limit_s = self._again_s_max
        is_stopped = not fault and bool(self._peer.until) and self.is_drained()
        return (Ended(0, ended.output) if is_stopped else ended), watch

    def run_again(self, story: str) -> tuple[str, str]:
        """Run the worker again, without a fault, and judge the ledger, whatever the tool thinks of its queue.

        A worker runs once more; what ends by itself up to three times, until it ends well.
        """
        for _ in range(1 if self._peer.until else RERUNS_MAX):
            again, _ = self.through_proxy(self.watch())
            is_stuck = not self.is_drained() if self._peer.until else again.code != 0
            story += f", then {again.code}{' and not drained' if is_stuck else ''}"
            if not is_stuck:
                break
        found = self.look()
        money = books.verdict(self.base, self.clean, found)
        return f"{money}{STUCK if is_stuck else ''}", f"{story} {books.describe(self.clean, found)}"

    def places(self, when: str) -> list[Place]:
        """Choose one point of each name that a job depends on: the second of that name, else the first.

        The name of COMMIT says nothing of what it commits, so it is told apart by the statement before it.
        """
        chosen: dict[tuple[str, str], Place] = {}
        seen: Counter[tuple[str, str]] = Counter()
        before = ""
        for place, _ in self.points:
            is_commit = place.name.lower() == "commit"
            key = (place.name, before if is_commit else "")
            before = place.name
            is_noise = re.search(NOISE, place.name, re.IGNORECASE) or (is_commit and when == "before")
            seen[key] += 1
            if not is_noise and seen[key] <= 2:
                chosen[key] = place
        return list(chosen.values())


def spelled(name: str) -> str:
    """Leave values out of a statement."""
    head = re.sub(r"(?i)\bvalues\b.*", "values", name)
    return re.sub(r"\d+", "0", re.sub(r"'[^']*'?", "'?'", head))


def _program(peer: Peer) -> Program:
    return Program(
        name=f"{peer.name}/{peer.variant}",
        folder=peer.folder,
        why="",
        command=peer.command("work"),
        setup="",
        before_setup=(),
        needs=(),
        log_tables=frozenset(),
        ignore=frozenset(),
        varies=frozenset(f"{peer.ledger}.{column}" for column in ("_dlt_load_id", "_dlt_id")),
        rerun="SAFE",
        time_limit_s=AGAIN_S_MAX,
        ends=(),
        expect={},
        points=(),
    )


def judge(peer: Peer, server: embedded.ScratchServer, faults: tuple[str, ...], *, prints_all: bool) -> None:
    """Try the faults at the peer's points; print how often each verdict came, and where it was not SAFE."""
    counts: dict[str, Counter[str]] = {}
    unsafe: list[Tried] = []
    with (
        tempfile.TemporaryDirectory(prefix="peer-") as folder,
        PeerCage(peer, make_conninfo(server.dsn, dbname="peer"), Path(folder)) as cage,
    ):
        print(f"{peer.name}/{peer.variant}: {len(cage.points)} points in a clean run", flush=True)
        for fault in faults:
            for when in FAULTS[fault]:
                for place in cage.places(when):
                    tried = cage.attempt(fault, when, place)
                    counts.setdefault(f"{fault} {when}", Counter())[tried.verdict] += 1
                    if tried.verdict not in ("SAFE", "UNREACHED"):
                        unsafe.append(tried)
                    if prints_all or tried in unsafe:
                        print(f"  {tried}"[:LINE_CHARACTERS_MAX], flush=True)
    for key, verdicts in counts.items():
        print(f"  {key}: {', '.join(f'{count} {verdict}' for verdict, count in sorted(verdicts.items()))}", flush=True)


def main() -> int:
    """Judge the peers that are named."""
    parser = argparse.ArgumentParser(description="Fail what others wrote while it does the money task.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--faults", default="cut-before,cut-after,kill", help="which faults, with commas between them")
    parser.add_argument("--all", action="store_true", help="print every point, not only where money was not right")
    options = parser.parse_args()
    with embedded.scratch(settings=SETTINGS) as server:
        for peer in peers(options.names):
            if not peer.python.exists():
                print(f"{peer.name}: skipped, it is not installed (make peers installs it)")
                continue
            judge(peer, server, tuple(options.faults.split(",")), prints_all=options.all)
    return 0


if __name__ == "__main__":
    sys.exit(main())
