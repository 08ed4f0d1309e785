"""A storm: several commands work on overlapping files while everything around them dies. `make faults SECONDS=60`

Two jobs with effects that lock the same accounts in opposite order apply files that share events. Workers are killed,
frozen and taken over, sessions terminated, back-ends killed, the server crashed, and connections cut at random
boundaries, most often at COMMIT. Then the storm ends, every file is run to its end, and the books have to be exact.

Exit code: 0 exact, and all was met that has to be; 1 not exact; 70 something was not met, so it shows nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

import pgonce
from faults.invariants import books_are_right
from faults.kills import Command
from pgonce import server as embedded
from pgonce.api.admin import init
from pgonce.cli.exits import exit_code_of
from pgonce.crashtest.boundary import CUT_AFTER, CUT_BEFORE, PASS, TERMINATE_AFTER, TERMINATE_BEFORE, Action, Boundary
from pgonce.crashtest.proxy import Proxy

WORKERS = 3
# A file has some of the ids of a window that moves on by less than it has, so each shares most with its neighbours.
ROWS_A_FILE, IDS_AT_A_TIME, NEW_IDS_A_FILE = 900, 1_500, 400
# Half of the runs begin chunks ahead.
RUN_WORKERS = (1, 1, 2, 3)

CHUNK_ROWS = 40
RECENT_FILES = 6

# At most this many runs of one file after the storm; each goes on where the last one stopped.
DRAINS_MAX = 20

# A command in the storm ends within seconds; one that takes this long hangs.
COMMAND_S_MAX = 120.0

# How long the one who takes over may work before it is killed and the frozen one goes on.
TAKE_OVER_S = 2.0

CUT_RATE, CUT_RATE_AT_COMMIT = 0.002, 0.02

JOBS = ("first", "second")
REFUSED_CENTS = 13

TABLES = """
create table account (name text primary key, balance bigint not null);
insert into account select p || n, 0 from unnest(array['a', 'b']) as p, generate_series(0, 3) as n;
"""

PART = """
update account as a set balance = a.balance + c.cents
from (select account, sum(amount_cents) as cents from chunk where account like '{}%' group by account) as c
where a.name = c.account;
"""

PLANTED = """
do $$ begin
    if exists (select from chunk where amount_cents = 13) then
        raise check_violation using message = 'this amount is refused';
    end if;
    if random() < 0.01 then raise serialization_failure using message = 'planted'; end if;
end $$;
"""

# What a storm has to have met; one that did not shows nothing.
MUST_BE_MET = (
    "commit in doubt, committed",
    "commit in doubt, not committed",
    "fence: a frozen owner was refused",
    "40001",
    "40P01",
    "worker killed",
    "session terminated",
    "back-end killed",
    "server crashed",
)

SQLSTATE = re.compile(r"\[([0-9A-Z]{5})\]")


@dataclass(slots=True)
class Storm:
    """Everything that is at work, and what was met."""

    seed: int
    folder: Path
    server: embedded.ScratchServer
    met: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)
    running: dict[int, tuple[Command, str, Path]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    files: list[tuple[str, Path]] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def count(self, what: str) -> None:
        """Count something that was met."""
        with self.lock:
            self.met[what] += 1


def write_scripts(folder: Path) -> None:
    """Write the effect of each job; they lock the same accounts in opposite order."""
    for job, parts in zip(JOBS, (("a", "b"), ("b", "a")), strict=True):
        (folder / f"{job}.sql").write_text(PLANTED + "".join(PART.format(part) for part in parts))


def new_file(storm: Storm, chance: random.Random) -> tuple[str, Path]:
    """Write another file: ids that others have too, a few conflicts, bad rows, negative and refused amounts."""
    job = chance.choice(JOBS)
    with storm.lock:
        number = len(storm.files)
        path = storm.folder / f"{number}.csv"
        storm.files.append((job, path))
    ids = range(number * NEW_IDS_A_FILE, number * NEW_IDS_A_FILE + IDS_AT_A_TIME)
    with path.open("w") as file:
        file.write("id,cents,account\n")
        for event in chance.sample(ids, ROWS_A_FILE):
            cents = str(-5 if event % 97 == 0 else REFUSED_CENTS if event % 203 == 0 else 100 + event * 7 % 900)
            if chance.random() < 0.01:
                cents = chance.choice(["1", "xx"])
            file.write(f"{event},{cents},{'ab'[event % 2]}{event // 2 % 4}\n")
    return job, path


def command(folder: Path, dsn: str, job: str, path: Path, *more: str) -> list[str]:
    """Return the command that applies a file."""
    return [
        *(sys.executable, "-m", "pgonce", "run", str(path), "--job", job, "--key", "id", "--amount", "cents"),
        *("--effect", str(folder / f"{job}.sql"), "--chunk-rows", str(CHUNK_ROWS), "--dsn", dsn, "-v", *more),
    ]


def on_boundary(storm: Storm, chance: random.Random) -> Callable[[Boundary], Action]:
    """Cut or terminate at random boundaries, until the storm is over."""

    def decide(boundary: Boundary) -> Action:
        rate = CUT_RATE_AT_COMMIT if boundary.is_commit else CUT_RATE
        if storm.over.is_set() or chance.random() >= rate:
            return PASS
        return chance.choice((CUT_BEFORE, CUT_AFTER, TERMINATE_BEFORE, TERMINATE_AFTER))

    return decide


def work(storm: Storm, number: int, dsn: str) -> None:
    """Run one file after another, until the storm is over."""
    chance = random.Random(storm.seed * 100 + number)
    while not storm.over.is_set():
        recent = storm.files[-RECENT_FILES:]
        job, path = chance.choice(recent) if recent and chance.random() < 0.7 else new_file(storm, chance)
        more = ("--workers", str(chance.choice(RUN_WORKERS)))
        with Command(command(storm.folder, dsn, job, path, *more)) as running:
            with storm.lock:
                storm.running[number] = (running, job, path)
            try:
                code = running.wait(COMMAND_S_MAX)
            except TimeoutError as error:
                storm.wrong.append(f"hung: {error}")
                return
            finally:
                with storm.lock:
                    storm.running.pop(number, None)
            note(storm, running, code)


def note(storm: Storm, running: Command, code: int) -> None:
    """Keep what a command said and how it ended."""
    with storm.lock:
        storm.codes[code] += 1
        storm.met.update(SQLSTATE.findall(running.output))
        if code == 76 and running.pid in storm.frozen and "does not own the run any more" in running.output:
            storm.met["fence: a frozen owner was refused"] += 1
    if code not in (0, 1, 69, 75, 76, 77, -signal.SIGKILL) or "Traceback" in running.output:
        storm.wrong.append(f"ended with {code}: {running.output[-3000:]}")


def rage(storm: Storm, dsn: str) -> None:
    """Do harm at random moments, until the storm is over."""
    chance = random.Random(storm.seed)
    deeds = (kill_worker, terminate_session, kill_backend, crash_server, freeze_and_take_over)
    while not storm.over.wait(chance.uniform(0.02, 0.25)):
        [deed] = chance.choices(deeds, weights=(8, 8, 1, 2, 3))
        with contextlib.suppress(psycopg.Error, ProcessLookupError):
            deed(storm, chance, dsn)


def a_worker(storm: Storm, chance: random.Random) -> tuple[Command, str, Path] | None:
    with storm.lock:
        return chance.choice(list(storm.running.values())) if storm.running else None


def kill_worker(storm: Storm, chance: random.Random, _dsn: str) -> None:
    """SIGKILL a command."""
    if (found := a_worker(storm, chance)) and not found[0].ended:
        found[0].send(signal.SIGKILL)
        storm.count("worker killed")


def sessions(dsn: str) -> list[int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute("select pid from pg_stat_activity where application_name like 'pgonce/%'").fetchall()
    return [pid for (pid,) in rows]


def terminate_session(storm: Storm, chance: random.Random, dsn: str) -> None:
    """End a session of a command from the server's side."""
    if pids := sessions(dsn):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("select pg_terminate_backend(%s)", (chance.choice(pids),))
        storm.count("session terminated")


def kill_backend(storm: Storm, chance: random.Random, dsn: str) -> None:
    """SIGKILL a back-end: the server ends all sessions and recovers."""
    if pids := sessions(dsn):
        os.kill(chance.choice(pids), signal.SIGKILL)
        storm.count("back-end killed")


def crash_server(storm: Storm, _chance: random.Random, _dsn: str) -> None:
    """Stop the server at once and start it again."""
    storm.server.crash()
    storm.server.start()
    storm.count("server crashed")


def freeze_and_take_over(storm: Storm, chance: random.Random, dsn: str) -> None:
    """Freeze a command, take its run over with another one, and let the first go on."""
    found = a_worker(storm, chance)
    if found is None or found[0].ended:
        return
    frozen, job, path = found
    storm.frozen.add(frozen.pid)
    frozen.send(signal.SIGSTOP)
    try:
        taking_over = Command(command(storm.folder, dsn, job, path, "--take-over"))
        with taking_over as second, contextlib.suppress(TimeoutError):
            note(storm, second, second.wait(TAKE_OVER_S))
    finally:
        frozen.send(signal.SIGCONT)


def drain(storm: Storm, dsn: str) -> None:
    """Run every file to its end, then twice more, which must change nothing."""
    for job, path in storm.files:
        codes = [run_to_end(storm, dsn, job, path)]
        while codes[-1] not in (0, 1) and len(codes) < DRAINS_MAX:
            codes.append(run_to_end(storm, dsn, job, path))
        if codes[-1] not in (0, 1):
            storm.wrong.append(f"{path.name} did not end well after the storm: {codes}")
    before = everything(dsn)
    for _ in range(2):
        for job, path in storm.files:
            run_to_end(storm, dsn, job, path)
    if everything(dsn) != before:
        storm.wrong.append("two more runs of everything changed something")


def run_to_end(storm: Storm, dsn: str, job: str, path: Path) -> int:
    """Run a file in this process, as the command would; return its exit code."""
    try:
        report = pgonce.run(
            str(path),
            job=job,
            key="id",
            amount="cents",
            effect=str(storm.folder / f"{job}.sql"),
            limits=pgonce.Limits(chunk_rows=CHUNK_ROWS),
            dsn=dsn,
        )
    except pgonce.PgonceError as error:
        return exit_code_of(error)
    return report.exit_code


def everything(dsn: str) -> list[list[tuple[Any, ...]]]:
    """Read all that counts."""
    with psycopg.connect(dsn) as connection:
        return [
            connection.execute(text).fetchall()
            for text in (
                "select job, event_id, status, amount_cents, payload, run_id, line from pgonce.event order by 1, 2",
                "select * from pgonce.effect order by 1, 2, 3",
                "select * from pgonce.finding order by run_id, line",
                "select * from account order by 1",
            )
        ]


def judge(storm: Storm, dsn: str) -> None:
    """Check the books against the files."""
    payloads: dict[tuple[str, str], set[str]] = {}
    for job, path in storm.files:
        for row in path.read_text().splitlines()[1:]:
            event, cents, _ = row.split(",")
            if cents != "xx":
                payloads.setdefault((job, event), set()).add(cents)
    with psycopg.connect(dsn) as connection:
        events = connection.execute("select job, event_id, status, amount_cents from pgonce.event").fetchall()
        [(balances, effects)] = connection.execute(
            "select (select sum(balance) from account), (select sum(amount_cents) from pgonce.effect)"
        ).fetchall()
    stored = {(job, event): (status, cents) for job, event, status, cents in events}
    if stored.keys() != payloads.keys():
        storm.wrong.append(f"{len(payloads.keys() ^ stored.keys())} events are missing or were made up")
    for name, (status, cents) in stored.items():
        right = "failed" if cents < 0 or cents == REFUSED_CENTS else "completed"
        if str(cents) not in payloads.get(name, set()) or status != right:
            storm.wrong.append(f"event {name} is {status} with {cents}, its rows say {payloads.get(name)}")
    if balances != effects:
        storm.wrong.append(f"the accounts hold {balances}, the effects are {effects}")
    storm.wrong += books_are_right(dsn)
    with Command([sys.executable, "-m", "pgonce", "reconcile", "--dsn", dsn]) as running:
        if running.wait(COMMAND_S_MAX) != 0:
            storm.wrong.append(f"reconcile: {running.output}")


def blow(seconds: float, seed: int) -> Storm:
    """Let the storm blow for this long; return what was met and what is wrong."""
    settings = {"deadlock_timeout": "50ms", "max_connections": "60"}
    with (
        tempfile.TemporaryDirectory(prefix="pgonce-storm-") as name,
        embedded.scratch(settings=settings) as server,
    ):
        folder = Path(name)
        storm = Storm(seed, folder, server)
        write_scripts(folder)
        init(dsn=server.dsn)
        with psycopg.connect(server.dsn) as connection:
            connection.execute(TABLES)
        with Proxy.of_dsn(server.dsn, on_boundary=on_boundary(storm, random.Random(seed))) as proxy:
            through = proxy.dsn(server.dsn)
            threads = [threading.Thread(target=work, args=(storm, n, through)) for n in range(WORKERS)]
            threads.append(threading.Thread(target=rage, args=(storm, server.dsn)))
            for thread in threads:
                thread.start()
            try:
                storm.over.wait(seconds)
            finally:
                storm.over.set()
                for thread in threads:
                    thread.join()
            for fired in proxy.fired:
                if fired.boundary.is_commit:
                    kept = fired.answer == "COMMIT"
                    storm.met[f"commit in doubt, {'' if kept else 'not '}committed"] += 1
        drain(storm, server.dsn)
        judge(storm, server.dsn)
    return storm


def main(arguments: Sequence[str] | None = None) -> int:
    """Blow, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args(arguments)
    print(f"seed {asked.seed}, {asked.seconds:.0f} s, {WORKERS} workers", flush=True)
    storm = blow(asked.seconds, asked.seed)
    print(f"{len(storm.files):7} files of {ROWS_A_FILE} rows")
    for what, times in sorted(storm.met.items()):
        print(f"{times:7} {what}")
    print("exit codes: " + ", ".join(f"{code}: {times}" for code, times in sorted(storm.codes.items())))
    for sentence in storm.wrong:
        print(f"WRONG: {sentence}")
    missing = [what for what in MUST_BE_MET if not storm.met[what]]
    if missing:
        print(f"not met: {', '.join(missing)}")
    print("not exact" if storm.wrong else "inconclusive" if missing else "exact")
    return 1 if storm.wrong else 70 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
