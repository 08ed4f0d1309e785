"""`make bench-peers`: pgonce beside others at the money task, each in the way its documentation shows.

Every event of a file is one payment, to be booked once: a row of a ledger with its amount. The programs of the others
are in ``beside``; each runs in a virtual environment of its own and says how long it took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pgonce
from benchmarks import actions
from benchmarks.bench import SETTINGS, where, write_between
from benchmarks.inputs import Input, write_input
from benchmarks.measure import Bench
from pgonce import server

VENVS = Path(__file__).parents[1] / ".make" / "peers"
PROGRAMS = Path(__file__).parent / "beside"
BEGIN, END = "<!-- peers: written by `make bench-peers` -->\n", "<!-- end of peers -->\n"

# It takes so long for each that a fiftieth of the rows says as much.
SLOW = {"dbos": 50}

# In more ways than one.
VARIANTS = {"dbos": ("called", "queue")}

# Longer than any of them needs; then it hangs.
PROGRAM_S_MAX = 1200

WHAT = {
    "procrastinate": "a job an event, deferred as one batch; one worker, 20 jobs at a time, async, a pool",
    "pgqueuer": "a job an event, enqueued as one batch; one worker, batches of 300, asyncpg, a pool",
    "oban": "a job an event, enqueued by thousands; one node, a queue of 100, async, a pool of 20",
    "dbos": "a workflow an event, one transactional step; called one after the other, or in a queue, 20 at a time",
    "dlt": "Arrow tables from the CSV file, merged by the key with two of its strategies, loaded as CSV",
}


@dataclass(frozen=True, slots=True)
class Took:
    """What one run took: seconds to hand in and to do, for so many rows, by which version."""

    name: str
    version: str
    rows: int
    enqueue_s: float
    process_s: float

    @property
    def rate(self) -> float:
        """Rows a second over all."""
        return self.rows / (self.enqueue_s + self.process_s)


def beside(
    scratch: server.ScratchServer, name: str, source: Input, *, variant: str = "", again: bool = False
) -> list[Took]:
    """Run a peer over a file on a fresh database, twice if ``again``; its ledger has to be exact each time."""
    database = sql.Identifier("beside_now")
    with psycopg.connect(scratch.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(database))
        admin.execute(sql.SQL("create database {}").format(database))
        admin.execute("checkpoint")
    dsn = make_conninfo(scratch.dsn, dbname="beside_now")
    if name != "dlt":
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table ledger (payment_id text primary key, cents bigint not null)")
    took = []
    with tempfile.TemporaryDirectory(prefix="pgonce-beside-") as folder:
        for turn in ("", ", again")[: 1 + again]:
            command = [VENVS / name / "bin" / "python", PROGRAMS / f"{name}.py", source.path]
            done = subprocess.run(
                command, env=_environment(dsn, folder, variant), capture_output=True, text=True, timeout=PROGRAM_S_MAX
            )
            if done.returncode:
                raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
            said = json.loads(done.stdout.splitlines()[-1])
            _check(dsn, "books.ledger" if name == "dlt" else "ledger", source)
            label = f"{name}, {variant}" if variant else name
            took.append(Took(f"{label}{turn}", said["version"], source.rows, said["enqueue_s"], said["process_s"]))
    return took


def _environment(dsn: str, folder: str, variant: str) -> dict[str, str]:
    """Name the server in the way that libpq knows."""
    parts = conninfo_to_dict(dsn)
    return {
        "PATH": os.environ["PATH"],
        "HOME": folder,
        "PGHOST": str(parts["host"]),
        "PGPORT": str(parts["port"]),
        "PGUSER": str(parts["user"]),
        "PGDATABASE": str(parts["dbname"]),
        "BESIDE_VARIANT": variant,
        "BESIDE_FOLDER": folder,
        "DO_NOT_TRACK": "1",
        "RUNTIME__DLTHUB_TELEMETRY": "false",
    }


def _check(dsn: str, ledger: str, source: Input) -> None:
    with source.path.open(encoding="utf-8") as file:
        next(file)
        cents = sum(int(line.split(",", 2)[1]) for line in file)
    with psycopg.connect(dsn) as connection:
        count = sql.SQL("select count(*), sum(cents) from {}").format(sql.Identifier(*ledger.split(".")))
        found = connection.execute(count).fetchone()
    if found != (source.rows, cents):
        raise RuntimeError(f"the ledger holds {found} instead of {(source.rows, cents)}")


def ours(bench: Bench, source: Input, workers: int, *, again: bool = False) -> Took:
    """Run pgonce over the file; ``again`` when it was settled before, reading every row."""
    options = {"limits": {"workers": workers}}
    action: Callable[..., actions.Action] = actions.replay if again else actions.ours
    before = (actions.ours, source, {}) if again else None
    seconds = bench.measure(source.rows, action, source, options, before=before).seconds
    name = f"pgonce, {workers} worker{'s' * (workers > 1)}{', again' * again}"
    return Took(name, pgonce.__version__, source.rows, 0.0, seconds)


def lines(title: str, rounds: list[list[Took]]) -> str:
    """Write a table in Markdown: medians over the rounds, and pgonce's rate as a multiple, by pairs of one round."""
    text = (
        f"### {title}\n\n| | version | rows | handed in, rows/s | done, rows/s | over all, rows/s "
        "| pgonce with 1 worker is | with 2 |\n|---|---|--:|--:|--:|--:|--:|--:|\n"
    )
    for number, first in enumerate(rounds[0]):
        each = [took[number] for took in rounds]
        enqueue_s = median(took.enqueue_s for took in each)
        ratios = []
        for workers in ("1 worker", "2 workers"):
            name = f"pgonce, {workers}{', again' if first.name.endswith('again') else ''}"
            pairs = [
                next(other.rate for other in took if other.name == name) / took[number].rate
                for took in rounds
                if any(other.name == name for other in took)
            ]
            ratios.append(f"{median(pairs):,.2f} times" if pairs else "")
        text += (
            f"| {first.name} | {first.version} | {first.rows:,} "
            f"| {f'{first.rows / enqueue_s:,.0f}' if enqueue_s else ''} "
            f"| {first.rows / median(took.process_s for took in each):,.0f} "
            f"| {median(took.rate for took in each):,.0f} | {' | '.join(ratios)} |\n"
        )
    return text


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000, help="events for the task queues")
    parser.add_argument("--load-rows", type=int, default=1_000_000, help="events for what loads files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="print only, leave README.md as it is")
    given = parser.parse_args()
    there = [name for name in WHAT if (VENVS / name / "bin" / "python").exists()]
    with (
        server.scratch(settings=SETTINGS) as scratch,
        tempfile.TemporaryDirectory(prefix="pgonce-bench-") as name,
    ):
        bench, folder = Bench(scratch.dsn, scratch.postmaster_pid), Path(name)
        queues, loads = list[list[Took]](), list[list[Took]]()
        some = write_input(folder, given.rows, "in order")
        many = write_input(folder, given.load_rows, "in order")
        for _ in range(given.rounds):
            took = [ours(bench, some, workers) for workers in (1, 2)]
            for peer in there:
                if peer != "dlt":
                    source = write_input(folder, given.rows // SLOW.get(peer, 1), "in order")
                    for variant in VARIANTS.get(peer, ("",)):
                        took += beside(scratch, peer, source, variant=variant)
            queues.append(took)
            took = [ours(bench, many, workers, again=again) for again in (False, True) for workers in (1, 2)]
            for strategy in ("delete-insert", "upsert") if "dlt" in there else ():
                took += beside(scratch, "dlt", many, variant=strategy, again=True)
            loads.append(took)
            print(*queues[-1], *loads[-1], sep="\n", flush=True)
        text = "\n".join(
            (
                where(scratch.dsn, given.rounds),
                lines("Task queues", queues),
                lines("Loading a file", loads),
                "".join(f"- {peer}: {WHAT[peer]}. `benchmarks/beside/{peer}.py`\n" for peer in there),
            )
        )
    print(text)
    if not given.keep:
        write_between(BEGIN, text, END)


if __name__ == "__main__":
    main()
