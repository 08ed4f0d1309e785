"""The commands that write, and one that waits: what stands before each, how it ends, and what it leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg

from faults.harness import Launch, forked, run_limited, wait_until_quiet
from pgonce.cli.main import COMMANDS, main

# A forked child finds everything imported: starting a command then costs a fork.
for _place in COMMANDS.values():
    import_module(_place.partition(":")[0])

ACCOUNTS = """
create table public.account (account text primary key, balance bigint not null default 0);
insert into public.account (account) values ('a'), ('b'), ('c'), ('d')
"""
OPEN_ACCOUNT = "insert into public.account (account) values ('z')"

# Of several rows an account has, and of accounts without one, the aggregated form makes one update each, or none.
FILES = {
    "settle.sql": (
        "update public.account as a set balance = a.balance + c.cents\n"
        "from (select account, sum(amount_cents) as cents from chunk group by account) as c\n"
        "where a.account = c.account;\n"
    ),
    # Not now, as long as account z is not there.
    "busy.sql": (
        "do $$ begin\n"
        "    if exists (select from chunk where account not in (select a.account from public.account as a)) then\n"
        "        raise exception 'the account is busy' using errcode = '40001';\n"
        "    end if;\n"
        "end $$;\n"
        "update public.account as a set balance = a.balance + c.cents\n"
        "from (select account, sum(amount_cents) as cents from chunk group by account) as c\n"
        "where a.account = c.account;\n"
    ),
    "check.sql": "select account from chunk where account not in (select a.account from public.account as a);\n",
    "earlier.csv": "id,cents,account\nq01,700,a\nq02,500,b\nq03,30,a\n",
    # Three chunks of four: one with a duplicate; one with a negative amount, a bad number and a conflict inside the
    # file; one with a replay of, and a conflict with, an earlier file.
    "payments.csv": (
        "id,cents,account\np01,100,a\np02,200,b\np03,300,a\np01,100,a\n"
        "p04,-5,b\np05,xx,a\np02,999,b\np06,600,c\nq01,700,a\nq02,1,b\np07,70,a\n"
    ),
    # The same for a transaction an item.
    "few.csv": "id,cents,account\np01,100,a\np01,100,a\np04,-5,b\np05,xx,a\np01,999,b\nq01,700,a\np07,70,a\n",
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
    """A command to be failed everywhere. ``code`` is how it ends, also when all is done already.

    ``{folder}`` in arguments is where FILES lie. ``reads`` names the input; ``effects`` is the number and the sum in
    cents of all effects at the end, ``balances`` what the accounts come to. ``is_fresh`` begins with an empty database.
    ``history`` counts the steps of events' histories at the end, ``versions`` the job's definitions. ``only_reads``
    says that there is no COMMIT: it is failed everywhere each time. ``by_copy`` has the fewest events claimed by COPY,
    ``by_workers`` says that several connections take chunks in any order: then a point may not be met again.
    """

    name: str
    arguments: tuple[str, ...]
    before: tuple[Before, ...] = ()
    code: int = 0
    reads: str = ""
    effects: tuple[int, int] = (0, 0)
    balances: str = ""
    history: int = 0
    versions: int = 1
    is_fresh: bool = False
    only_reads: bool = False
    by_copy: bool = False
    by_workers: bool = False


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
_ELSEWHERE = Before(sql="update pgonce.run set outcome = jsonb_set(outcome, '{cluster}', '\"another\"')")
# One start uses up the budget of r04, whose account is not there; r07 fails.
_BUSY = _applying(
    "accounts.csv", "--effect", "{folder}/busy.sql", "--attempts", "9", "--backoff", "0.001", chunk_rows=3
)
_USED_UP = (Before(sql=ACCOUNTS), Before(arguments=_BUSY, code=75))
_WHY = ("--job", "settle", "--why", "looked at it")
_REOPEN = ("events", "reopen", "r04", *_WHY)
_AMEND = ("events", "amend", "r07", "--amount", "7", *_WHY)
_PAYMENTS: dict[str, Any] = {"code": 1, "reads": "payments.csv", "before": (_EARLIER,), "effects": (8, 2500)}
_FEW = {**_PAYMENTS, "reads": "few.csv", "effects": (5, 1400)}
_BISECTED: dict[str, Any] = {"effects": (7, 378), "balances": "a=155 b=206 c=17 d=0"}

SCENARIOS = (
    Scenario(name="run-chunk", arguments=_applying("payments.csv"), **_PAYMENTS),
    Scenario(name="run-item", arguments=_applying("few.csv", "--checkpoint", "item"), **_FEW),
    Scenario(
        name="run-all",
        arguments=_applying("payments.csv", "--checkpoint", "all", "--on-error", "quarantine"),
        **_PAYMENTS,
    ),
    Scenario(
        name="run-effect-bisected",
        arguments=_BAD_ACCOUNT[1].arguments,
        before=_BAD_ACCOUNT[:1],
        code=1,
        reads="accounts.csv",
        **_BISECTED,
    ),
    Scenario(
        name="run-effect-all",
        arguments=_applying("good.csv", *_EFFECT, "--checkpoint", "all", chunk_rows=2),
        before=_BAD_ACCOUNT[:1],
        reads="good.csv",
        effects=(5, 31),
        balances="a=21 b=2 c=8 d=0",
    ),
    Scenario(
        name="run-over-pending",
        arguments=_applying("second.csv", *_EFFECT, chunk_rows=1),
        before=(*_BAD_ACCOUNT, Before(sql=OPEN_ACCOUNT), Before(arguments=_REOPEN)),
        reads="second.csv",
        effects=(9, 458),
        balances="a=165 b=206 c=17 d=0 z=70",
        history=2,
    ),
    Scenario(
        name="run-reread",
        arguments=_BAD_ACCOUNT[1].arguments,
        before=(*_BAD_ACCOUNT, Before(sql=OPEN_ACCOUNT), Before(arguments=_REOPEN), Before(arguments=_AMEND)),
        reads="accounts.csv",
        effects=(9, 455),
        balances="a=162 b=206 c=17 d=0 z=70",
        history=4,
    ),
    Scenario(
        name="run-finished",
        arguments=_applying("payments.csv"),
        **{**_PAYMENTS, "before": (_EARLIER, Before(arguments=_applying("payments.csv"), code=1))},
    ),
    Scenario(
        name="run-elsewhere",
        arguments=_applying("payments.csv"),
        **{**_PAYMENTS, "before": (_EARLIER, Before(arguments=_applying("payments.csv"), code=1), _ELSEWHERE)},
    ),
    Scenario(name="run-report", arguments=_applying("payments.csv", "--report", "{folder}/out.ndjson"), **_PAYMENTS),
    Scenario(
        name="run-rehearsed",
        arguments=_applying("payments.csv", "--dry-run"),
        before=(_EARLIER,),
        code=1,
        effects=(3, 1230),
    ),
    Scenario(
        name="adopt",
        arguments=_applying("payments.csv", command="adopt"),
        **{**_PAYMENTS, "effects": (3, 1230)},
    ),
    Scenario(name="events-reopen", arguments=_REOPEN, before=_BAD_ACCOUNT, history=1, **_BISECTED),
    Scenario(
        name="events-reopen-all",
        arguments=("events", "reopen", "--all-failed", "--yes", *_WHY),
        before=_BAD_ACCOUNT,
        history=2,
        **_BISECTED,
    ),
    Scenario(name="events-amend", arguments=_AMEND, before=_BAD_ACCOUNT, history=1, **_BISECTED),
    Scenario(
        name="retry-pending",
        arguments=("retry", "--pending", "--budget", "2", *_WHY),
        before=_USED_UP,
        history=1,
        **_BISECTED,
    ),
    Scenario(name="retry-failed", arguments=("retry", "--failed", *_WHY), before=_USED_UP, history=1, **_BISECTED),
    Scenario(name="retry-named", arguments=("retry", "r07", "r04", *_WHY), before=_USED_UP, history=2, **_BISECTED),
    Scenario(
        name="run-granted",
        arguments=_BUSY,
        before=(*_USED_UP, Before(sql=OPEN_ACCOUNT), Before(arguments=("retry", "--pending", *_WHY))),
        code=1,
        reads="accounts.csv",
        effects=(8, 448),
        balances="a=155 b=206 c=17 d=0 z=70",
        history=2,
    ),
    Scenario(
        name="resolve", arguments=("resolve", "1", "--json"), before=(_EARLIER,), effects=(3, 1230), only_reads=True
    ),
    Scenario(
        name="job-change",
        arguments=("job", "change", "settle", "--why", "the account moves", *_DEFINITION, "--ignore", "account"),
        before=(_EARLIER,),
        effects=(3, 1230),
        versions=2,
    ),
    Scenario(name="db-init", arguments=("db", "init"), is_fresh=True, versions=0),
    Scenario(name="db-migrate", arguments=("db", "migrate"), before=(_EARLIER,), effects=(3, 1230)),
    Scenario(name="reconcile", arguments=("reconcile",), before=(_EARLIER, _ELSEWHERE), effects=(3, 1230)),
)
SCENARIOS += tuple(
    replace(scenario, name=f"{scenario.name}-by-copy", by_copy=True)
    for scenario in SCENARIOS
    if scenario.name in ("run-chunk", "run-all", "run-effect-bisected", "run-over-pending", "adopt")
)
SCENARIOS += tuple(
    replace(
        scenario,
        name=f"{scenario.name}-by-workers",
        arguments=(*scenario.arguments, "--workers", "3"),
        by_copy=True,
        by_workers=True,
    )
    for scenario in SCENARIOS
    if scenario.name in ("run-chunk", "run-effect-bisected", "run-over-pending")
)


def command(arguments: tuple[str, ...], folder: Path, *, plant: Callable[[], None] = lambda: None) -> Launch:
    """Launch pgonce with these arguments in a forked child, which is as it is after importing; ``plant`` breaks it."""

    def body(dsn: str) -> int:
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
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


# The order in which rows can be put back; what an account is to pgonce is nothing, so it may come last.
TABLES = ("migration", "job", "definition", "run", "start", "event", "effect", "finding", "event_history")

_KEEP = "create schema kept; " + "".join(f"create table kept.{name} as table pgonce.{name}; " for name in TABLES)
_KEEP_ACCOUNTS = "create table kept.account as table public.account"
_RESTORE = (
    "alter table pgonce.event disable trigger user; alter table pgonce.effect disable trigger user; "
    + "".join(f"delete from pgonce.{name}; " for name in reversed(TABLES))
    + "".join(f"insert into pgonce.{name} overriding system value table kept.{name}; " for name in TABLES)
    + "alter table pgonce.event enable always trigger event_keep, enable always trigger event_final, "
    "enable always trigger event_final_made; "
    "alter table pgonce.effect enable always trigger effect_keep, enable always trigger effect_reference"
)
_RESTORE_ACCOUNTS = "delete from public.account; insert into public.account table kept.account"


def keep(scenario: Scenario, dsn: str) -> None:
    """Keep what stands in the prepared database, so that ``restore`` can bring it back."""
    if not scenario.is_fresh:
        with psycopg.connect(dsn) as connection:
            connection.execute(_KEEP)
            if scenario.balances:
                connection.execute(_KEEP_ACCOUNTS)


def restore(scenario: Scenario, dsn: str, folder: Path) -> None:
    """Bring the database and the folder back to where the scenario's command finds them: cheaper than a new copy."""
    for left in folder.glob("out.ndjson*"):
        left.unlink()
    wait_until_quiet(dsn)
    with psycopg.connect(dsn) as connection:
        if scenario.is_fresh:
            connection.execute("drop schema if exists pgonce cascade")
            return
        connection.execute(_RESTORE)
        if scenario.balances:
            connection.execute(_RESTORE_ACCOUNTS)
