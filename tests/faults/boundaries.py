"""The commands that write, what stands in the database before each, and what must hold after any fault in them."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from faults.harness import CUT_AFTER, CUT_BEFORE, Ended, Fault, Launch, forked, run_limited, wait_until_quiet
from pgonce.api.admin import doctor
from pgonce.api.reconcile import reconcile
from pgonce.cli.main import COMMANDS, main
from pgonce.crashtest.boundary import Boundary
from pgonce.db.statements import statement

# A forked child finds everything imported: starting a command then costs a fork.
for _place in COMMANDS.values():
    import_module(_place.partition(":")[0])

# What a faulted command may end with beside its own code: not reachable, safe to run again, outcome unknown; or killed.
SAFE_CODES = frozenset({69, 75, 77, -9})

ACCOUNTS = """
create table account (account text primary key, balance bigint not null default 0);
insert into account (account) values ('a'), ('b'), ('c'), ('d')
"""
OPEN_ACCOUNT = "insert into account (account) values ('z')"

# Of several rows an account has, and of accounts without one, the aggregated form makes one update each, or none.
FILES = {
    "settle.sql": (
        "update account as a set balance = a.balance + c.cents\n"
        "from (select account, sum(amount_cents) as cents from chunk group by account) as c where a.account = c.account;\n"
    ),
    "check.sql": "select c.account from chunk as c left join account as a using (account) where a.account is null;\n",
    "earlier.csv": "id,cents,account\nq01,700,a\nq02,500,b\nq03,30,a\n",
    # Three chunks of four: one with a duplicate; one with a negative amount, a bad number and a conflict inside the
    # file; one with a replay of, and a conflict with, an earlier file.
    "payments.csv": (
        "id,cents,account\np01,100,a\np02,200,b\np03,300,a\np01,100,a\n"
        "p04,-5,b\np05,xx,a\np02,999,b\np06,600,c\nq01,700,a\nq02,1,b\np07,70,a\n"
    ),
    # Three chunks of three: account z is not there, so r04 is found by bisecting and fails.
    "accounts.csv": (
        "id,cents,account\nr01,100,a\nr02,200,b\nr03,50,a\nr04,70,z\nr05,5,a\nr06,6,b\nr07,-7,a\nr08,8,c\nr09,9,c\n"
    ),
    "second.csv": "id,cents,account\nr10,10,a\nr04,70,z\nr01,100,a\n",
    "good.csv": "id,cents,account\ns01,1,a\ns02,2,b\ns03,4,a\ns04,8,c\ns05,16,a\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Something that happened before the command: SQL, or a command that ended with a code."""

    arguments: tuple[str, ...] = ()
    code: int = 0
    sql: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A command to be failed everywhere. ``code`` is how it ends, ``again`` how it ends when all is done already.

    ``{folder}`` in arguments is where FILES lie. ``reads`` names the input; ``effects`` is the number and the sum in
    cents of all effects at the end, ``balances`` what the accounts come to. ``is_fresh`` begins with an empty database.
    ``is_blessed`` has finished runs recognised in the copied database. ``history`` counts the steps of events'
    histories at the end, ``versions`` the job's definitions.
    """

    name: str
    arguments: tuple[str, ...]
    before: tuple[Before, ...] = ()
    code: int = 0
    again: int | None = None
    reads: str = ""
    effects: tuple[int, int] = (0, 0)
    balances: str = ""
    history: int = 0
    versions: int = 1
    is_fresh: bool = False
    is_blessed: bool = False

    @property
    def code_again(self) -> int:
        """The exit code when all is done already."""
        return self.code if self.again is None else self.again

    @property
    def is_deterministic(self) -> bool:
        """Say whether every run reaches the same boundaries."""
        return True


_DEFINITION = ("--key", "id", "--amount", "cents")
_EFFECT = ("--effect", "{folder}/settle.sql", "--verify", "{folder}/check.sql")


def _applying(file: str, *options: str, command: str = "run", chunk_rows: int = 4) -> tuple[str, ...]:
    rows = ("--chunk-rows", str(chunk_rows))
    return (command, f"{{folder}}/{file}", "--job", "settle", *_DEFINITION, *rows, "--json", *options)


_EARLIER = Before(arguments=_applying("earlier.csv"))
_BAD_ACCOUNT = (
    Before(sql=ACCOUNTS),
    Before(arguments=_applying("accounts.csv", *_EFFECT, chunk_rows=3), code=1),
)
_WHY = ("--job", "settle", "--why", "looked at it")
_REOPEN = ("events", "reopen", "r04", *_WHY)
_AMEND = ("events", "amend", "r07", "--amount", "7", *_WHY)
_PAYMENTS = {"code": 1, "reads": "payments.csv", "before": (_EARLIER,), "effects": (8, 2500)}
_BISECTED: dict[str, Any] = {"effects": (7, 378), "balances": "a=155 b=206 c=17 d=0"}

SCENARIOS = (
    Scenario(name="run, a chunk", arguments=_applying("payments.csv"), **_PAYMENTS),
    Scenario(name="run, an item", arguments=_applying("payments.csv", "--checkpoint", "item"), **_PAYMENTS),
    Scenario(
        name="run, all",
        arguments=_applying("payments.csv", "--checkpoint", "all", "--on-error", "quarantine"),
        **_PAYMENTS,
    ),
    Scenario(
        name="run, effect and bisection",
        arguments=_BAD_ACCOUNT[1].arguments,
        before=_BAD_ACCOUNT[:1],
        code=1,
        reads="accounts.csv",
        **_BISECTED,
    ),
    Scenario(
        name="run, effect over all",
        arguments=_applying("good.csv", *_EFFECT, "--checkpoint", "all", chunk_rows=2),
        before=_BAD_ACCOUNT[:1],
        reads="good.csv",
        effects=(5, 31),
        balances="a=21 b=2 c=8 d=0",
    ),
    Scenario(
        name="run, over a pending event",
        arguments=_applying("second.csv", *_EFFECT, chunk_rows=1),
        before=(*_BAD_ACCOUNT, Before(sql=OPEN_ACCOUNT), Before(arguments=_REOPEN)),
        reads="second.csv",
        effects=(9, 458),
        balances="a=165 b=206 c=17 d=0 z=70",
        history=2,
    ),
    Scenario(
        name="run, read again",
        arguments=_BAD_ACCOUNT[1].arguments,
        before=(*_BAD_ACCOUNT, Before(sql=OPEN_ACCOUNT), Before(arguments=_REOPEN), Before(arguments=_AMEND)),
        reads="accounts.csv",
        effects=(9, 455),
        balances="a=162 b=206 c=17 d=0 z=70",
        history=4,
    ),
    Scenario(
        name="run, finished before",
        arguments=_applying("payments.csv"),
        **{**_PAYMENTS, "before": (_EARLIER, Before(arguments=_applying("payments.csv"), code=1))},
        is_blessed=True,
    ),
    Scenario(
        name="run, finished elsewhere",
        arguments=_applying("payments.csv"),
        **{**_PAYMENTS, "before": (_EARLIER, Before(arguments=_applying("payments.csv"), code=1))},
    ),
    Scenario(
        name="run --report", arguments=_applying("payments.csv", "--report", "{folder}/out.ndjson"), **_PAYMENTS
    ),
    Scenario(
        name="adopt",
        arguments=_applying("payments.csv", command="adopt"),
        **{**_PAYMENTS, "effects": (3, 1230)},
    ),
    Scenario(name="events reopen", arguments=_REOPEN, before=_BAD_ACCOUNT, again=1, history=1, **_BISECTED),
    Scenario(
        name="events reopen --all-failed",
        arguments=("events", "reopen", "--all-failed", "--yes", *_WHY),
        before=_BAD_ACCOUNT,
        history=2,
        **_BISECTED,
    ),
    Scenario(name="events amend", arguments=_AMEND, before=_BAD_ACCOUNT, again=1, history=1, **_BISECTED),
    Scenario(
        name="job change",
        arguments=("job", "change", "settle", "--why", "the account moves", *_DEFINITION, "--ignore", "account"),
        before=(_EARLIER,),
        effects=(3, 1230),
        versions=2,
    ),
    Scenario(name="db init", arguments=("db", "init"), is_fresh=True, versions=0),
    Scenario(name="db migrate", arguments=("db", "migrate"), before=(_EARLIER,), effects=(3, 1230)),
    Scenario(name="reconcile", arguments=("reconcile",), before=(_EARLIER, *_BAD_ACCOUNT[:0]), effects=(3, 1230)),
)


def command(arguments: tuple[str, ...], folder: Path, *, plant: Callable[[], None] = lambda: None) -> Launch:
    """Launch pgonce with these arguments in a forked child, which is as it is after importing; ``plant`` breaks it."""

    def body(dsn: str) -> int:
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
        plant()
        sys.argv = ["pgonce", *(argument.format(folder=folder) for argument in arguments), "--dsn", dsn]
        main()

    return forked(body)


def prepare(scenario: Scenario, dsn: str, folder: Path) -> None:
    """Bring a database to where the scenario's command finds it."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for step in scenario.before:
        if step.sql:
            with psycopg.connect(dsn) as connection:
                connection.execute(step.sql)
        else:
            ended = run_limited(command(step.arguments, folder), dsn)
            assert ended.code == step.code, f"{step.arguments} ended with {ended.code}: {ended.output}"
    wait_until_quiet(dsn)


def freshen(scenario: Scenario, dsn: str, folder: Path) -> None:
    """Make a copy of the prepared database, and the folder, ready for one run."""
    for left in folder.glob("out.ndjson*"):
        left.unlink()
    if scenario.is_blessed:
        assert reconcile(dsn=dsn).balanced


_RANK = "(select count(*) from pgonce.run as o where o.run_id <= t.run_id)"

# The state as it must be whatever happened on the way: without times, epochs, pids, attempts, and with runs by their
# rank, because a number is used up by an insert that was rolled back.
_STATE = {
    "migrations": "select version, name, sha256 from pgonce.migration order by 1",
    "jobs": "select job, version, attempt_budget from pgonce.job order by 1",
    "definitions": "select job, version, spec::text, why from pgonce.definition order by 1, 2",
    "runs": "select job, version, kind, source, digest, reading::text, input_bytes, finished_at is not null,"
    " (outcome - 'cluster')::text, touched from pgonce.run order by run_id",
    "positions": f"select distinct on (t.run_id) {_RANK}, position, lines, digest, replay, input_name, ended_at is null"
    " from pgonce.start as t order by t.run_id, t.epoch desc",
    "events": "select job, source, event_id, status, amount_cents, payload, error, adopted, line, fingerprint,"
    f" {_RANK} from pgonce.event as t order by 1, 2, 3",
    "effects": "select job, source, event_id, amount_cents from pgonce.effect order by 1, 2, 3",
    "findings": f"select {_RANK}, line, kind, source, event_id, amount_cents, reason, raw from pgonce.finding as t"
    " order by 1, 2",
    "histories": "select job, source, event_id, step, action, old_status, old_amount_cents, old_payload, old_error, why,"
    f" {_RANK} from pgonce.event_history as t order by 1, 2, 3, 4",
}
_VOLATILE = re.compile(r"run \d+(?:, \d{4}-[^)]*)?")


def fingerprint(scenario: Scenario, dsn: str, folder: Path) -> dict[str, object]:
    """Describe the end state, with the row report."""
    try:
        with psycopg.connect(dsn) as connection:
            state: dict[str, object] = {name: _rows(connection, text) for name, text in _STATE.items()}
            state["counts"] = [
                sorted(_counts(connection, job, run_id).items())
                for job, run_id in connection.execute("select job, run_id from pgonce.run order by run_id").fetchall()
            ]
            state["accounts"] = accounts(connection)
            numbers = [row[0] for row in connection.execute("select run_id from pgonce.run order by 1").fetchall()]
    except psycopg.Error as error:
        return {"error": str(error)}
    state["report"] = _report(folder / "out.ndjson", numbers)
    return state


def _rows(connection: psycopg.Connection, text: str) -> list[tuple[object, ...]]:
    found = connection.execute(text).fetchall()
    return [tuple(_VOLATILE.sub("run N", value) if isinstance(value, str) else value for value in row) for row in found]


def _counts(connection: psycopg.Connection, job: str, run_id: int) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    found = connection.execute(statement("count_run", "pgonce"), {"job": job, "run_id": run_id}).fetchall()
    for result, rows, cents in found:
        before = sums.get(result, (0, 0))
        sums[result] = (before[0] + int(rows), before[1] + int(cents))
    return {result: sum_ for result, sum_ in sums.items() if sum_ != (0, 0)}


def accounts(connection: psycopg.Connection) -> str:
    """Read the balances, empty if the scenario has no accounts."""
    if connection.execute("select to_regclass('public.account')").fetchone() == (None,):
        return ""
    found = connection.execute("select account, balance from account order by 1").fetchall()
    return " ".join(f"{account}={balance}" for account, balance in found)


def _report(path: Path, numbers: list[int]) -> list[object] | None:
    """Read the row report, with runs by their rank."""
    if not path.exists():
        return None
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["run"] = None if line["run"] is None else numbers.index(line["run"]) + 1
        line["reason"] = _VOLATILE.sub("run N", line.get("reason", ""))
    return lines


def judge(scenario: Scenario, ended: Ended, expected: object) -> str:
    """Say what is wrong with how a run of the command ended; empty if nothing is."""
    if ended.code not in SAFE_CODES | {scenario.code, scenario.code_again}:
        return f"it ended with {ended.code}, which is neither its own code nor says that it is safe to run again"
    if "Traceback" in ended.output:
        return "it ended with a traceback"
    for line in ended.output.splitlines():
        if line.startswith("{") and '"whole_run"' in line:
            told = json.loads(line)["whole_run"]
            named = {name: (tally["rows"], tally["cents"]) for name, tally in told.items() if any(tally.values())}
            named["rows"] = named.pop("read")
            assert isinstance(expected, dict)
            if sorted(named.items()) != expected["counts"][-1 if "finished" not in scenario.name else -1]:
                return f"it told {named}, and stored is {expected['counts'][-1]}"
    return ""
