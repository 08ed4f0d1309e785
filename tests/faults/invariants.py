"""What must hold after any fault in any command, once the same command was run again to its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg

from faults.boundaries import FILES, Scenario, command
from faults.harness import Ended, run_limited, wait_until_quiet
from pgonce.api.admin import doctor
from pgonce.api.reconcile import reconcile
from pgonce.db.statements import statement

# What a faulted command may end with beside its own code: not reachable, safe to run again, outcome unknown; or killed.
SAFE_CODES = frozenset({69, 75, 77, -9})

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
    "events": "select job, source, event_id, status, amount_cents, payload, error, adopted, line, fingerprint, granted,"
    f" {_RANK} from pgonce.event as t order by 1, 2, 3",
    "effects": "select job, source, event_id, amount_cents from pgonce.effect order by 1, 2, 3",
    "findings": f"select {_RANK}, line, kind, source, event_id, amount_cents, reason, raw from pgonce.finding as t"
    " order by 1, 2",
    "histories": "select job, source, event_id, step, action, old_status, old_amount_cents, old_payload, old_error,"
    f" why, granted, {_RANK} from pgonce.event_history as t order by 1, 2, 3, 4",
}
_VOLATILE = re.compile(r"run \d+(?:, \d{4}-[^)]*)?")


_CLUSTER = statement("cluster_identity", "pgonce").decode()


def fingerprint(scenario: Scenario, dsn: str, folder: Path) -> dict[str, object]:
    """Describe the end state, with the row report."""
    try:
        with psycopg.connect(dsn) as connection:
            state: dict[str, object] = {name: _rows(connection, text) for name, text in _STATE.items()}
            state["counts"] = [
                sorted(_counts(connection, job, run_id).items())
                for job, run_id in connection.execute("select job, run_id from pgonce.run order by run_id").fetchall()
            ]
            state["accounts"] = _accounts(connection)
            if scenario.arguments[0] == "reconcile":
                state["confirmed"] = _rows(connection, f"select outcome ->> 'cluster' = ({_CLUSTER}) from pgonce.run")
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
    of_the_run = {"job": job, "run_id": run_id, "epoch": None}
    found = connection.execute(statement("count_run", "pgonce"), of_the_run).fetchall()
    for _run, result, rows, cents in found:
        before = sums.get(result, (0, 0))
        sums[result] = (before[0] + int(rows), before[1] + int(cents))
    return {result: sum_ for result, sum_ in sums.items() if sum_ != (0, 0)}


def _accounts(connection: psycopg.Connection) -> str:
    """Read the balances, empty if the scenario has no accounts."""
    if connection.execute("select to_regclass('public.account')").fetchone() == (None,):
        return ""
    found = connection.execute("select account, balance from public.account order by 1").fetchall()
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
    if ended.code not in SAFE_CODES | {scenario.code}:
        return f"it ended with {ended.code}, which is neither its own code nor says that it is safe to run again"
    if "Traceback" in ended.output:
        return "it ended with a traceback"
    for line in ended.output.splitlines() if scenario.reads else ():
        if line.startswith("{") and '"whole_run"' in line:
            told = json.loads(line)["whole_run"]
            named = {name: (tally["rows"], tally["cents"]) for name, tally in told.items() if any(tally.values())}
            named["rows"] = named.pop("read")
            assert isinstance(expected, dict)
            if sorted(named.items()) != expected["counts"][-1]:
                return f"it told {named}, and stored is {expected['counts'][-1]}"
    return ""


# Each of these finds nothing in a database whose books are right and where nobody left anything.
_NOTHING = {
    "a completed event has no effect, another amount than its effect, or an effect is of another event": """
        select event_id from (select * from pgonce.event where status = 'completed' and not adopted) as e
        full join pgonce.effect as f using (job, source, event_id)
        where e.amount_cents is distinct from f.amount_cents""",
    "the starts of a run are not numbered one by one up to its epoch": """
        select run_id from pgonce.run as r join pgonce.start as s using (run_id)
        group by run_id having array_agg(s.epoch order by s.epoch)
            <> (select array_agg(n) from generate_series(1, max(r.epoch)) as n)""",
    "the position went back from one start to the next": """
        select run_id from (select *, lag(position) over (partition by run_id order by epoch) as before
        from pgonce.start) as s where position < before""",
    "an event was settled by a start that its run does not have, or behind its position": """
        select event_id from pgonce.event as e left join pgonce.start as s using (run_id, epoch)
        where s.run_id is null or e.line > s.lines""",
    "an event's line was settled by an earlier start than a line before it": """
        select event_id from (select *, max(epoch) over (partition by run_id order by line) as highest
        from pgonce.event) as e where epoch < highest""",
    "a run is not finished, or a start has not ended": """
        select run_id from pgonce.run as r left join pgonce.start as s using (run_id)
        where r.finished_at is null or s.ended_at is null""",
    "a row of the history was doubled": """
        select event_id from pgonce.event_history group by job, source, event_id, action, why having count(*) > 1""",
    "a relation chunk is left": "select oid from pg_class where relname = 'chunk'",
    "a prepared transaction is left": "select gid from pg_prepared_xacts where database = current_database()",
    "an advisory lock is left": """
        select pid from pg_locks where locktype = 'advisory'
        and database = (select oid from pg_database where datname = current_database())""",
}


def books_are_right(dsn: str) -> list[str]:
    """Say what does not hold in a database where everything was run to its end and nothing is left."""
    wait_until_quiet(dsn)
    with psycopg.connect(dsn) as connection:
        found = {what: connection.execute(query).fetchall() for what, query in _NOTHING.items()}
    return [f"{what}: {rows[:5]}" for what, rows in found.items() if rows]


def check(scenario: Scenario, dsn: str, folder: Path, more_runs: Iterator[bool]) -> None:
    """Raise AssertionError naming what does not hold: the books, the leftovers, and that two more runs change nothing.

    ``more_runs`` says of each check whether it makes those two runs.
    """
    wait_until_quiet(dsn)  # or it raises: a session is left
    with psycopg.connect(dsn) as connection:
        for what, query in _NOTHING.items():
            found = connection.execute(query).fetchall()
            assert not found, f"{what}: {found}"
        totals = connection.execute("select count(*), coalesce(sum(amount_cents), 0)::bigint from pgonce.effect")
        assert (found := totals.fetchone()) == scenario.effects, f"the effects are {found}"
        assert _accounts(connection) == scenario.balances
        [(steps, versions)] = connection.execute(
            "select (select count(*) from pgonce.event_history), (select count(*) from pgonce.definition)"
        ).fetchall()
        assert (steps, versions) == (scenario.history, scenario.versions)
        if scenario.reads:
            lines = FILES[scenario.reads].count("\n") - 1
            [(job, run_id)] = connection.execute(
                "select job, run_id from pgonce.run order by run_id desc limit 1"
            ).fetchall()
            settled = _counts(connection, job, run_id)
            assert settled.pop("rows")[0] == lines == sum(rows for rows, _ in settled.values()), settled
    assert sorted(path.name for path in folder.glob("out.ndjson*")) in ([], ["out.ndjson"])
    if next(more_runs):
        _check_two_more_runs(scenario, dsn, folder)
    assert reconcile(dsn=dsn).balanced
    if scenario.arguments[0] == "db":
        assert doctor(dsn).clean


def _check_two_more_runs(scenario: Scenario, dsn: str, folder: Path) -> None:
    """E5: after any history, two more runs change nothing, not even a time."""
    before = _everything(dsn)
    for _ in range(2):
        ended = run_limited(command(scenario.arguments, folder), dsn)
        assert ended.code == scenario.code, f"one more run ended with {ended.code}: {ended.output}"
    after = _everything(dsn)
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"more runs changed {changed}"


def _everything(dsn: str) -> dict[str, list[str]]:
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "select oid::regclass::text from pg_class where relkind = 'r' and relnamespace in"
            " (select oid from pg_namespace where nspname in ('pgonce', 'public')) order by 1"
        ).fetchall()
        return {
            table: [row for (row,) in connection.execute(f"select t::text from {table} as t order by 1").fetchall()]
            for (table,) in tables
        }
