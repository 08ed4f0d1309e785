"""Kill the real command at instants chosen by what it has committed, start it again, and check that the end is exact.

A gate is a deferred constraint trigger that takes a shared advisory lock: while a test holds that lock, the next COMMIT
of a chunk, or the one that finishes the run, stands still inside COMMIT, and whoever is to die there can be killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from faults.harness import wait_until

# A whole input of the campaign takes some ten seconds; what takes this long waits for something that never comes.
COMMAND_S_MAX = 120.0

# A commit takes a few milliseconds here. A kill is put off by up to this after the progress it waited for was seen, so
# that kills fall into all phases of a chunk and not only behind a commit.
DITHER_S = 0.008

CHUNK_GATE, FINISH_GATE = 41, 42

GATES = """
create function gate_wait() returns trigger language plpgsql as
$$ begin perform pg_advisory_xact_lock_shared(tg_argv[0]::bigint); return null; end $$;
create constraint trigger gate_chunk after update of chunks on pgonce.start deferrable initially deferred
    for each row execute function gate_wait(41);
create constraint trigger gate_finish after update of finished_at on pgonce.run deferrable initially deferred
    for each row execute function gate_wait(42);
"""

# Said of progress: the start in force, its chunks, the lines settled, and whether the run is finished.
PROGRESS = """
select s.epoch, s.chunks, s.lines, r.finished_at is not null, s.owner
from pgonce.start as s join pgonce.run as r using (run_id)
where s.input_name = %s order by s.run_id desc, s.epoch desc limit 1
"""

SESSIONS = "from pg_stat_activity where datname = current_database() and application_name like 'pgonce/%%'"


@dataclass(frozen=True, slots=True)
class Events:
    """A file of events: its path, and the cents and the line of every id in it."""

    path: Path
    cents: Mapping[str, int]
    lines: Mapping[str, int]

    @property
    def last_line(self) -> int:
        """The number of the file's last line."""
        return len(self.lines) + 1


def cents_of(number: int) -> int:
    """Return the amount of an event, the same in every file that has it."""
    return number * 37 % 9973


def write_events(path: Path, numbers: Sequence[int]) -> Events:
    """Write a file with these events in this order; each belongs to one of seven accounts."""
    with path.open("w") as file:
        file.write("payment_id,amount_cents,account\n")
        file.writelines(f"p{number:06},{cents_of(number)},a{number % 7}\n" for number in numbers)
    ids = [f"p{number:06}" for number in numbers]
    return Events(
        path,
        {name: cents_of(number) for name, number in zip(ids, numbers, strict=True)},
        {name: line for line, name in enumerate(ids, start=2)},
    )


PAUSING = Path(__file__).with_name("pausing.py")


def command(
    dsn: str, events: Events, *options: str, job: str = "settle", chunk_rows: int = 100, pause_at: Sequence[int] = ()
) -> list[str]:
    """Return the command that applies a file of events; it stops itself once each of these lines is acknowledged."""
    program = [str(PAUSING), ",".join(map(str, pause_at))] if pause_at else ["-m", "pgonce"]
    return [
        *(sys.executable, *program, "run", str(events.path), "--job", job, "--dsn", dsn),
        *("--key", "payment_id", "--amount", "amount_cents", "--chunk-rows", str(chunk_rows), *options),
    ]


class Command:
    """A command in a process group of its own; it does not outlive the block that it is opened in."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the command
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Say whether it has ended."""
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        """All it has written so far."""
        return os.pread(self._output.fileno(), 1 << 20, 0).decode("utf-8", "replace")

    def send(self, number: int) -> None:
        """Send its process group a signal; one that has ended gets none."""
        if not self.ended:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the process group and wait for its end."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def wait(self, limit_s: float = COMMAND_S_MAX) -> int:
        """Wait for its end and return its exit code (a signal as a negative number)."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"did not end within {limit_s} s; it said: {self.output}") from None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a file is, as committed."""

    epoch: int = 0
    chunks: int = 0
    lines: int = 0
    finished: bool = False
    owner: str = ""


class Watcher:
    """A connection that looks at a run's committed progress, and shuts and opens gates."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._lines = 0

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def progress(self, events: Events) -> Progress:
        """Read the progress of a file; AssertionError if it is behind what was seen before."""
        row = self._connection.execute(PROGRESS, (str(events.path),)).fetchone()
        seen = Progress(*row) if row else Progress()
        assert seen.lines >= self._lines, f"the position went back from line {self._lines} to {seen.lines}"
        self._lines = seen.lines
        return seen

    def rows(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a query."""
        return self._connection.execute(text, parameters).fetchall()

    def backends(self) -> list[int]:
        """Return the pids of the sessions of pgonce in this database."""
        return [pid for (pid,) in self.rows(f"select pid {SESSIONS}")]

    def session_states(self) -> list[str]:
        """Return the states of the sessions of pgonce in this database."""
        return [state for (state,) in self.rows(f"select state {SESSIONS}")]

    def waiting(self, gate: int) -> list[int]:
        """Return the pids of the sessions whose COMMIT stands at a shut gate."""
        waiting = self.rows(
            "select pid from pg_locks where locktype = 'advisory' and objid = %s and not granted and database ="
            " (select oid from pg_database where datname = current_database())",
            gate,
        )
        return [pid for (pid,) in waiting]

    @contextlib.contextmanager
    def shut(self, gate: int) -> Iterator[None]:
        """Shut a gate for as long as the block lasts."""
        self.rows("select pg_advisory_lock(%s)", gate)
        try:
            yield
        finally:
            self.rows("select pg_advisory_unlock(%s)", gate)


def install_gates(dsn: str) -> None:
    """Put the gates into a database with the schema; they stand open."""
    with psycopg.connect(dsn) as connection:
        connection.execute(GATES)


@dataclass(frozen=True, slots=True)
class Kill:
    """When a start is to be killed: the kind of instant, and the line that must be settled before."""

    kind: str
    line: int


@dataclass(slots=True)
class Tally:
    """What a campaign did."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    ended_first: int = 0
    between: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({kinds}), {self.between} of them between first and last commit, "
            f"{self.starts} starts, {self.ended_first} ended first, {time.monotonic() - self.began_s:.1f} s"
        )


def spread(kinds: Sequence[str], events: Events, *, seed: int) -> list[Kill]:
    """Spread kills over a file, in a random order of their kinds; those at its finish come last."""
    shuffled = [kind for kind in kinds if not kind.startswith("finish")]
    random.Random(seed).shuffle(shuffled)
    step = events.last_line / (len(shuffled) + 1)
    last = sorted((kind for kind in kinds if kind.startswith("finish")), reverse=True)
    return [
        *(Kill(kind, int(step * number)) for number, kind in enumerate(shuffled, start=1)),
        *(Kill(kind, events.last_line) for kind in last),
    ]


def drive(dsn: str, argv: Sequence[str], events: Events, kills: Sequence[Kill], tally: Tally, *, seed: int = 0) -> None:
    """Start the command, kill it, start it again, through all kills; the last start has to end with 0 by itself."""
    chance = random.Random(seed)
    with Watcher(dsn) as watcher:
        for kill in kills:
            with Command(argv) as running:
                tally.starts += 1
                _kill(watcher, running, events, kill, tally, chance)
        with Command(argv) as running:
            tally.starts += 1
            code = running.wait()
            assert code == 0, f"the last start ended with {code}: {running.output}"
            assert watcher.progress(events).finished


def _kill(watcher: Watcher, running: Command, events: Events, kill: Kill, tally: Tally, chance: random.Random) -> None:
    before = watcher.progress(events)
    gate = {"commit": CHUNK_GATE, "finish": FINISH_GATE}.get(kill.kind.split()[0])

    def reached() -> bool:
        now = watcher.progress(events)
        begun = now.epoch > before.epoch
        return running.ended or (begun and (kill.kind == "start" or (now.chunks > 0 and now.lines >= kill.line)))

    if gate == FINISH_GATE:
        _kill_inside_commit(watcher, running, events, gate, kill, tally)
    else:
        wait_until(reached, f"{kill} of {events.path.name}", limit_s=COMMAND_S_MAX)
        if gate is not None and not running.ended:
            _kill_inside_commit(watcher, running, events, gate, kill, tally)
        elif kill.kind == "progress":
            time.sleep(chance.uniform(0, DITHER_S))
    if running.ended:
        code = running.wait()
        tally.ended_first += code != -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), f"a start ended with {code}: {running.output}"
    else:
        running.kill()
        tally.kills[kill.kind] += 1
    at = watcher.progress(events)
    tally.between += at.epoch > before.epoch and at.chunks > 0 and at.lines < events.last_line


def _kill_inside_commit(
    watcher: Watcher, running: Command, events: Events, gate: int, kill: Kill, tally: Tally
) -> None:
    """Kill the client inside COMMIT; then let the COMMIT end well, or hold it until the server gives the client up.

    What became of the COMMIT is looked up, not assumed: a slow machine may give a client up early.
    """
    with watcher.shut(gate):
        wait_until(
            lambda: bool(watcher.waiting(gate)) or running.ended, f"a COMMIT at gate {gate}", limit_s=COMMAND_S_MAX
        )
        if running.ended:
            return
        before = watcher.progress(events)
        [backend] = watcher.waiting(gate)
        running.kill()
        if kill.kind.endswith("lost"):
            wait_until(lambda: backend not in watcher.backends(), "the backend to give its client up")
    wait_until(lambda: backend not in watcher.backends(), "the backend to end")
    outcome = "lost" if watcher.progress(events) == before else "kept"
    tally.kills[f"{kill.kind.split()[0]} {outcome}"] += 1


def assert_exact(dsn: str, files: Sequence[Events], *, job: str = "settle") -> None:
    """Check everything that must hold at the end of finished runs over these files, which may share events."""
    cents = {name: amount for file in files for name, amount in file.cents.items()}
    with Watcher(dsn) as watcher:
        events = watcher.rows(
            "select event_id, amount_cents, status, run_id, line, epoch from pgonce.event where job = %s", job
        )
        assert {row[0]: row[1] for row in events} == cents
        assert len(events) == len(cents)
        assert {row[2] for row in events} == {"completed"}
        effects = watcher.rows("select event_id, amount_cents from pgonce.effect where job = %s", job)
        assert len(effects) == len(cents)
        assert dict(effects) == cents
        assert watcher.rows("select * from pgonce.finding") == []
        assert watcher.rows("select * from pgonce.event_history") == []
        for file in files:
            _assert_run_exact(watcher, file, job, events)
    _reconcile(dsn)


def _assert_run_exact(watcher: Watcher, file: Events, job: str, events: Sequence[tuple[Any, ...]]) -> None:
    starts = watcher.rows(
        """select s.run_id, s.epoch, s.lines, s.rows_read, s.cents_read, s.already, s.already_cents, s.ended_at,
            s.failed_again + s.pending_again + s.late, r.finished_at, r.epoch
        from pgonce.start as s join pgonce.run as r using (run_id) where s.input_name = %s and r.job = %s order by 2""",
        str(file.path),
        job,
    )
    [run_id] = {start[0] for start in starts}
    epochs = [start[1] for start in starts]
    assert epochs == list(range(1, len(epochs) + 1))
    assert starts[-1][10] == epochs[-1]
    assert all(start[9] is not None and start[7] is not None and start[8] == 0 for start in starts)
    own = [event for event in events if event[3] == run_id]
    assert all(file.lines[event[0]] == event[4] for event in own), "an event stands with another line than its row's"
    before = 1
    for _, epoch, lines, rows_read, _, already, *_ in starts:
        assert lines >= before, f"start {epoch} ends before the start before it"
        applied = [event for event in own if event[5] == epoch]
        assert all(before < event[4] <= lines for event in applied)
        assert rows_read == lines - before == len(applied) + already, f"the counts of start {epoch} do not balance"
        before = lines
    assert before == file.last_line
    assert sum(start[4] for start in starts) == sum(file.cents.values())
    assert sum(event[1] for event in own) + sum(start[6] for start in starts) == sum(file.cents.values())


def _reconcile(dsn: str) -> None:
    """Let the command say so too."""
    with Command([sys.executable, "-m", "pgonce", "reconcile", "--dsn", dsn]) as running:
        assert running.wait() == 0, running.output


def wait_until_paused(running: Command) -> None:
    """Wait until a command has stopped itself between two chunks; `send(SIGCONT)` lets it go on."""
    wait_until(lambda: running.ended or is_stopped(running), "the command to pause", limit_s=COMMAND_S_MAX)
    assert not running.ended, f"it ended with {running.wait()} and did not pause: {running.output}"


@contextlib.contextmanager
def frozen(running: Command) -> Iterator[None]:
    """Stop a process that stands in a statement, for as long as the block lasts."""
    running.send(signal.SIGSTOP)
    wait_until(lambda: is_stopped(running), "the process to stop")
    try:
        yield
    finally:
        running.send(signal.SIGCONT)


def is_stopped(running: Command) -> bool:
    """Say whether a command that has not been waited for is stopped."""
    return Path(f"/proc/{running.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
