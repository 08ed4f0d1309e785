"""pgonce's own commands under `pgonce crashtest`: each that changes the database, at every point and by every fault.

PYTHONPATH=tests python -m crashtest.own [--sample 1] [--faults cut-after,kill] [--jobs 2] [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgonce import server as embedded
from pgonce.crashtest import astext
from pgonce.crashtest.baseline import Rules
from pgonce.crashtest.conduct import conduct
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.lane import Command
from pgonce.crashtest.plan import Plan
from pgonce.crashtest.report import Report
from pgonce.errors import Inconclusive
from zoo.running import command_of, environment_for

# Every start of a run is a row of its own, whatever becomes of it, as in a log. A start that a fault ended stays there.
LOG_TABLES = frozenset({"pgonce.start"})

# These say how it came to the state: how often the run was started, and in which start something was done. After a
# fault that is the second. The rest of the rows is compared.
IGNORED = frozenset({"pgonce.run.epoch", "pgonce.event.epoch", "pgonce.event_history.epoch", "pgonce.finding.epoch"})

JOB = ("--job", "settle", "--key", "payment_id", "--amount", "cents")
FILES = {
    "payments.csv": "payment_id,account,cents\nP-1,ann,500\nP-2,bob,1250\nP-3,cy,70\n",
    "more.csv": "payment_id,account,cents\nP-2,bob,1250\nP-4,ann,5\nP-3,cy,71\nP-5,bob,oops\nP-6,dee,10\n",
    "settle.sql": "update public.account as a set cents = a.cents + c.cents\n"
    "from (select account, sum(amount_cents) as cents from chunk group by account) as c where a.account = c.account;\n",
    "refused.sql": "insert into public.account (account, cents) select account, -1 from chunk where account = 'bob';\n",
    "busy.sql": "do $$ begin raise exception 'busy' using errcode = '40001'; end $$;\n",
}
ACCOUNTS = (
    "create table account (account text primary key, cents bigint not null check (cents >= 0));\n"
    "insert into account (account, cents) values ('ann', 10000), ('bob', 20000), ('cy', 30000);\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command, what was done before it, and with which exit codes it says that all is well.

    Where what it writes is another thing in each clone, ``invariants`` say what has to hold, also after a clean run;
    ``noted`` is SQL that notes down before it what they need.
    """

    name: str
    argv: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    ok_exits: frozenset[int] = frozenset({0})
    noted: str = ""
    invariants: tuple[str, ...] = ()


INIT = ("db", "init")
RUN = ("run", "payments.csv", *JOB)
SETTLE = ("--effect", "settle.sql")
REFUSED = (INIT, (*RUN, "--effect", "refused.sql", "--checkpoint", "item"))
BUSY = (INIT, *[(*RUN, "--effect", "busy.sql", "--backoff", "0.001")] * 3)

# A run that was finished elsewhere is confirmed in this database, which is another one in each clone. All else stays.
HERE = (
    "select concat_ws('/', system_identifier, d.oid, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))"
    " from pg_database as d, pg_control_system() where d.datname = current_database()"
)
ROWS = (
    "select 'run' as what, to_jsonb(r) #- '{outcome,cluster}' as told from pgonce.run as r"
    " union all select 'event', to_jsonb(e) from pgonce.event as e"
    " union all select 'effect', to_jsonb(e) from pgonce.effect as e"
    " union all select 'finding', to_jsonb(f) from pgonce.finding as f"
    " union all select 'start', to_jsonb(s) from pgonce.start as s"
)
CONFIRMED = (
    f"select r.run_id from pgonce.run as r where r.outcome ->> 'cluster' is distinct from ({HERE})",
    f"({ROWS}) except all table noted",
    f"table noted except all ({ROWS})",
)

CASES = (
    Case(name="db-init", argv=INIT),
    Case(name="run-item", argv=(*RUN, *SETTLE, "--checkpoint", "item"), before=(INIT,)),
    Case(name="run-chunks", argv=(*RUN, *SETTLE, "--chunk-rows", "2"), before=(INIT,)),
    Case(name="run-all", argv=(*RUN, *SETTLE, "--checkpoint", "all"), before=(INIT,)),
    Case(name="run-plain", argv=RUN, before=(INIT,)),
    Case(
        name="replay-and-more",
        argv=("run", "more.csv", *JOB, *SETTLE, "--chunk-rows", "2"),
        before=(INIT, (*RUN, *SETTLE)),
        ok_exits=frozenset({0, 1}),
    ),
    Case(name="adopt", argv=("adopt", "payments.csv", *JOB, "--chunk-rows", "2"), before=(INIT,)),
    Case(name="retry-failed", argv=("retry", "--failed", "--why", "the account is there now"), before=REFUSED),
    Case(name="retry-pending", argv=("retry", "--pending", "--why", "it is quiet now"), before=BUSY),
    Case(
        name="amend",
        argv=("events", "amend", "P-2", "--job", "settle", "--amount", "1251", "--why", "a slip of the pen"),
        before=REFUSED,
    ),
    Case(
        name="reopen",
        argv=("events", "reopen", "P-2", "--job", "settle", "--why", "the account is there now"),
        before=REFUSED,
    ),
    Case(
        name="job-change",
        argv=("job", "change", "settle", *JOB[2:], *SETTLE, "--why", "it settles now"),
        before=(INIT, RUN),
    ),
    Case(
        name="reconcile",
        argv=("reconcile",),
        before=(INIT, (*RUN, *SETTLE), ("run", "more.csv", *JOB, *SETTLE)),
        noted=f"create table noted as {ROWS};",
        invariants=CONFIRMED,
    ),
)


def crash(
    case: Case,
    folder: Path,
    *,
    faults: Sequence[Fault] = tuple(Fault),
    per_statement: int | None = None,
    points_max: int | None = None,
    jobs: int = 1,
) -> Report:
    """Test one of the commands. ``folder`` is for its working folder and its setup."""
    work = folder / "work"
    work.mkdir()
    for name, text in FILES.items():
        (work / name).write_text(text)
    (folder / "setup.sql").write_text(f"{_state_before(case, work)}\nset search_path = public;\n{case.noted}\n")
    return conduct(
        Plan(
            command=Command(argv=tuple(command_of(("pgonce", *case.argv))), folder=work),
            setup=(folder / "setup.sql",),
            rules=Rules(
                log_tables=LOG_TABLES if case.before else frozenset(),
                ignore=IGNORED if case.before else frozenset(),
                ok_exits=case.ok_exits,
                invariants=case.invariants,
                invariants_only=bool(case.invariants),
            ),
            faults=tuple(faults),
            per_statement=per_statement,
            points_max=points_max,
            jobs=jobs,
        ),
        tell=lambda _: None,
        on_result=lambda *_: None,
    )


def _state_before(case: Case, work: Path) -> str:
    """Make the state before the command on a server of its own, and return it as SQL."""
    if not case.before:
        return ACCOUNTS
    with embedded.scratch(settings={"fsync": "off"}, parent=embedded.memory_folder()) as server:
        environment = environment_for(server.dsn)
        psql = [str(server.program("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", ACCOUNTS]
        subprocess.run(psql, env=environment, check=True)
        for argv in case.before:
            command = command_of(("pgonce", *argv))
            subprocess.run(
                command, env=environment, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        dump = subprocess.run(
            [str(server.program("pg_dump")), "--no-owner"], env=environment, capture_output=True, text=True, check=True
        )
    return dump.stdout


def main() -> int:
    """Test the commands that are named, all if none is, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--faults", default=",".join(fault.value for fault in Fault), help="with commas between them")
    parser.add_argument("--sample", type=int, help="of a statement that comes again and again, only so many")
    parser.add_argument("--jobs", type=int, default=1, help="servers at work at once")
    options = parser.parse_args()
    faults = [Fault(name) for name in options.faults.split(",")]
    unsafe, began = 0, time.monotonic()
    for case in CASES:
        if options.names and case.name not in options.names:
            continue
        with tempfile.TemporaryDirectory(prefix="own-") as folder:
            try:
                report = crash(case, Path(folder), faults=faults, per_statement=options.sample, jobs=options.jobs)
            except Inconclusive as error:
                print(f"{case.name:16} could not be tested: {error}", flush=True)
                unsafe += 1
                continue
        told = f"{len(report.results)} trials, {report.took_s:.1f} s; run twice: {report.baseline.again[0].value}"
        print(f"{case.name:16} {report.sentence}; {told}", flush=True)
        if not report.is_safe:
            unsafe += 1
            for result in report.unsafe:
                print("\n".join(f"  {line}" for line in astext.detail(report, result)), flush=True)
    print(f"{unsafe} not safe, {time.monotonic() - began:.0f} s")
    return 3 if unsafe else 0


if __name__ == "__main__":
    sys.exit(main())
