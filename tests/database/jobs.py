"""A desk to run jobs from: it writes inputs, runs orders on a fresh database, and reads what became of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from pgonce.db.connect import Target
from pgonce.db.reference import switch
from pgonce.db.session import Session, default_random
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.effect import Script
from pgonce.engine.run import Order
from pgonce.engine.run import run as run_order
from pgonce.model.backoff import Backoff
from pgonce.model.deadline import Deadline
from pgonce.model.definition import Definition
from pgonce.model.limits import Limits
from pgonce.model.observer import Observer, Silent, Step
from pgonce.model.report import RunReport
from pgonce.sources import ReadingOptions, open_input

# A thread of a test ends within a second, unless it waits for something that never comes.
THREAD_S_MAX = 60.0

LIMITS = frozenset(Limits.__dataclass_fields__)


def never() -> bool:
    """Answer that nobody asked to stop."""
    return False


def make_order(job: str = "pay", **options: Any) -> Order:
    """Make an order with key ``id`` and amount ``amount``; the user's SQL comes as text, limits by their names."""
    limits = Limits(**{name: options.pop(name) for name in list(options) if name in LIMITS})
    effect, verify = (_script(f"{name}.sql", options.pop(name, None)) for name in ("effect", "verify"))
    own = {name: options.pop(name) for name in list(options) if name in Order.__dataclass_fields__}
    if "redact" in own:
        own["redact"] = frozenset(own["redact"])
    options = {"key": ("id",), "amount": "amount"} | options
    definition = Definition(
        **options,
        effect_sha256=effect.sha256 if effect else None,
        verify_sha256=verify.sha256 if verify else None,
    )
    return Order(job=job, definition=definition, effect=effect, verify=verify, limits=limits, **own)


def _script(name: str, text: str | None) -> Script | None:
    return None if text is None else Script.read(name, text)


class Watching(Silent):
    """An observer that calls a function after each committed chunk, and keeps the chunks and the retries."""

    def __init__(self, after: Callable[[int], None] = lambda _: None) -> None:
        self.steps: list[Step] = []
        self.retries: list[str | None] = []
        self._after = after

    def committed(self, step: Step) -> None:
        """Keep the step, then call the function with the number of chunks so far."""
        self.steps.append(step)
        self._after(len(self.steps))

    def retried(self, sqlstate: str | None, reason: str) -> None:
        """Keep the SQLSTATE."""
        self.retries.append(sqlstate)


@dataclass(slots=True)
class Desk:
    """A fresh database, a clerk on it, and a folder for inputs."""

    dsn: str
    clerk: Clerk
    folder: Path
    make_clerk: Callable[[], Clerk]
    _names: int = field(default=0)
    _connection: psycopg.Connection | None = field(default=None)

    def csv(self, rows: Sequence[Sequence[object]], *, header: str = "id,amount,note", name: str = "") -> Path:
        """Write a CSV file; fields are written as they are, rows may be shorter than the header."""
        lines = [header, *(",".join(str(value) for value in row) for row in rows)]
        return self.text("\n".join(lines) + "\n", name=name or self._name("csv"))

    def ndjson(self, records: Sequence[Mapping[str, object] | str], *, name: str = "") -> Path:
        """Write one JSON object a line; a record that is text is written as it is."""
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        return self.text("".join(f"{line}\n" for line in lines), name=name or self._name("ndjson"))

    def text(self, text: str | bytes, *, name: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def run(
        self,
        path: Path,
        *,
        order: Order | None = None,
        clerk: Clerk | None = None,
        observer: Observer | None = None,
        interrupted: Callable[[], bool] = never,
        reading: ReadingOptions | None = None,
        **options: Any,
    ) -> RunReport:
        """Run a job over a file."""
        what = order or make_order(**options)
        clerk = clerk or self.clerk
        if what.limits.deadline_s is not None:
            clerk = replace(clerk, until=clerk.deadline(what.limits.deadline_s))
        with open_input(path, reading) as source:
            return run_order(clerk, source, what, observer=observer or Silent(), interrupted=interrupted)

    def sql(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run SQL in a transaction of its own and return its rows. A thread may do so while another waits in a run."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.dsn, autocommit=True)
        with self._connection.transaction():
            cursor = self._connection.execute(text, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Close the connection that the desk itself looks through."""
        if self._connection is not None:
            self._connection.close()

    def one(self, text: str, *parameters: object) -> Any:
        """Return the first value of the first row."""
        return self.sql(text, *parameters)[0][0]

    def statuses(self) -> dict[str, str]:
        """Return the state of every event by its id."""
        return dict(self.sql("select event_id, status from pgonce.event order by event_id"))

    def effects(self) -> dict[str, int]:
        """Return the cents of every effect by its event's id."""
        return dict(self.sql("select event_id, amount_cents from pgonce.effect order by event_id"))

    def findings(self) -> list[tuple[int, str, str]]:
        """Return line, kind and reason of every finding."""
        return self.sql("select line, kind, reason from pgonce.finding order by run_id, line")

    def positions(self) -> list[tuple[int, int, int]]:
        """Return run, start and lines settled of every start."""
        return self.sql("select run_id, epoch, lines from pgonce.start order by run_id, epoch")

    def amend(self, event_id: str, amount_cents: int) -> None:
        """Amend a failed event as an operator does: another amount, pending again, with its history."""
        self.sql(
            """with h as (
                insert into pgonce.event_history (
                    job, source, event_id, step, action, old_status, old_amount_cents, old_payload, old_error,
                    old_attempts, who, why
                )
                select job, source, event_id, 1, 'amended', status, amount_cents, payload, error, attempts, 'me', 'typo'
                from pgonce.event where event_id = %s
            )
            update pgonce.event set status = 'pending', amount_cents = %s, attempts = 0, error = null
            where event_id = %s""",
            event_id,
            amount_cents,
            event_id,
        )

    def forget(self, condition: str) -> None:
        """Take events ``e`` and their effects away, as a restore to an earlier moment does."""
        off, on = (
            "".join(
                f"alter table pgonce.{table} {how} trigger {name};"
                for table, name in (("event", "event_keep"), ("event", "event_final"), ("effect", "effect_keep"))
            )
            for how in ("disable", "enable always")
        )
        self.sql(
            f"""{off}
            delete from pgonce.effect as f using pgonce.event as e
            where (f.job, f.source, f.event_id) = (e.job, e.source, e.event_id) and {condition};
            delete from pgonce.event as e where {condition};
            {on}"""
        )

    def everything(self) -> list[list[tuple[Any, ...]]]:
        """Return all rows that a further run must not change, for comparing two moments."""
        return [
            self.sql(
                """select job, source, event_id, status, amount_cents, payload, error, run_id, line, attempts, adopted
                from pgonce.event order by 1, 2, 3"""
            ),
            self.sql("select job, source, event_id, amount_cents from pgonce.effect order by 1, 2, 3"),
            self.sql("select run_id, line, kind, event_id, amount_cents, reason from pgonce.finding order by 1, 2"),
            self.sql("select job, source, event_id, step, action from pgonce.event_history order by 1, 2, 3, 4"),
        ]  # fmt: skip

    def sound(self) -> None:
        """Check what always holds: an effect if and only if completed and not adopted, with the event's amount."""
        broken = self.sql(
            """select v.event_id, v.status, v.amount_cents, f.amount_cents
            from pgonce.event as v left join pgonce.effect as f using (job, source, event_id)
            where (v.status in ('completed', 'pruned') and not v.adopted) is distinct from (f.event_id is not null)
            or f.amount_cents <> v.amount_cents"""
        )
        assert broken == []

    def _name(self, suffix: str) -> str:
        self._names += 1
        return f"events-{self._names}.{suffix}"


def refer(desk: Desk, kind: str) -> None:
    """Put a kind of reference from effects to events in force: ``set`` or ``row``."""
    desk.clerk.do(lambda transaction: switch(transaction, kind))


@contextmanager
def in_thread(function: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Future[Any]]:
    """Run a function in a thread; leaving waits for its end."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(function, *arguments, **options)
        yield future
        future.exception(timeout=THREAD_S_MAX)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Look until a condition holds, and return what it gave."""
    end_s = time.monotonic() + THREAD_S_MAX / 2
    while not (found := condition()):
        assert time.monotonic() < end_s, f"never came: {what}"
        time.sleep(0.002)
    return found


def until_blocked(desk: Desk, by_pid: int) -> int:
    """Wait until a session waits for a lock that this backend holds; return the pid of the one that waits."""

    def blocked() -> Any:
        return desk.sql(
            """select a.pid from pg_stat_activity as a
            where %s = any(pg_blocking_pids(a.pid)) and datname = current_database()""",
            by_pid,
        )

    return int(until(blocked, f"a session that waits for {by_pid}")[0][0])


def clerk_on(dsn: str) -> Clerk:
    """Make a clerk on another way to the database, for instance through a proxy."""
    backoff = Backoff()
    session = Session(
        Target(conninfo=dsn, named_by="a test"),
        schema="pgonce",
        application="pgonce/test",
        random=default_random,
        sleep=time.sleep,
        backoff=backoff,
    )
    return Clerk(session=session, clock=time.monotonic, sleep=time.sleep, random=default_random, backoff=backoff)


def soon(clerk: Clerk) -> Deadline:
    """Give a transaction of the test half a minute."""
    return Deadline.after(30.0, clerk.clock)


def frozen(clerk: Clerk) -> Clerk:
    """Give a clerk a clock that only its own sleep moves: waits cost nothing and deadlines pass only while waiting."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return replace(clerk, clock=lambda: now[0], sleep=sleep)
