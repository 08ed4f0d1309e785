"""A plan says what a run does afterwards, row for row and cent for cent, and writes nothing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from database.jobs import Desk, Watching, in_thread, make_order, until
from database.test_ownership import Gate
from pgonce.engine.bookkeeping import read_only
from pgonce.engine.plan import Plan
from pgonce.engine.plan import plan as plan_order
from pgonce.errors import ConfigurationError, ContentTaken, DefinitionChanged, Interrupted, PgonceError, StopRequested
from pgonce.sources import open_input

MIXED = [
    ("a", 100, "x"), ("b", -5, "x"), ("a", 100, "x"), ("a", 7, "x"), ("", 3, "x"), ("c", "x", "x"), ("b", -5, "x"),
    ("b", -5, "y"), ("d", 9, "x"), ("a", 100, "x"), ("d", 9, "z"),
]  # fmt: skip

_numbers = itertools.count(1)


def plan_of(desk: Desk, path: Path, **options: Any) -> Plan:
    """Plan a run over a file."""
    findings_max = options.pop("findings_max", 20)
    with open_input(path) as source:
        return plan_order(desk.clerk, source, make_order(**options), findings_max=findings_max)


def stop_after(chunks: int) -> tuple[Watching, Any]:
    """Make an observer, and the function that asks to stop once so many chunks are committed."""
    watching = Watching()
    return watching, lambda: len(watching.steps) >= chunks


def stored_rows(desk: Desk) -> list[Any]:
    """Return every row version of every table, with the transactions that made and locked it."""
    tables = desk.sql("select tablename from pg_tables where schemaname = 'pgonce' order by 1")
    return [desk.sql(f"select ctid, xmin, xmax, t::text from pgonce.{name} as t order by 1") for (name,) in tables]


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 100])
def test_a_plan_says_what_the_run_does(desk: Desk, chunk_rows: int) -> None:
    """Duplicates, conflicts and refused amounts inside one input are known before any of it is stored."""
    path = desk.csv(MIXED)
    found = plan_of(desk, path, chunk_rows=chunk_rows)
    done = desk.run(path, chunk_rows=chunk_rows)
    assert (found.start, found.run, found.run_exit_code) == (done.start, done.run, done.exit_code)
    assert found.exit_code == 3
    assert (found.how, found.job_known, found.run_id) == ("new", False, None)
    assert [(bad.line, bad.kind) for bad in found.findings if bad.line in (5, 6, 7, 9, 12)] == [
        (line, kind) for line, kind, _ in desk.findings()
    ]
    reasons = {bad.line: bad.reason for bad in found.findings}
    assert f"from {path} line 2: amount: stored 100, now 7" in reasons[5]
    assert "below zero" in reasons[3]


def test_a_plan_writes_nothing_and_runs_no_effect(desk: Desk) -> None:
    """Not a row, not a row lock, not a call of the effect: whatever is stored of the input already."""
    desk.sql("create table told (n bigint)")
    options: dict[str, Any] = {"effect": "insert into told select count(*) from chunk", "chunk_rows": 2}
    path, other = desk.csv(MIXED), desk.csv([*MIXED, ("n", 1, "x")])
    watching, stop = stop_after(2)
    with pytest.raises(Interrupted):
        desk.run(path, observer=watching, interrupted=stop, **options)
    before, told = stored_rows(desk), desk.sql("select * from told")
    for each in (path, other):
        found = plan_of(desk, each, **options)
        assert "effect is not run" in found.notes[-1]
    assert (stored_rows(desk), desk.sql("select * from told")) == (before, told)


def test_a_write_by_a_plan_would_be_refused_by_the_server(desk: Desk) -> None:
    """The transactions of a plan are read only, so that no mistake of ours can write."""
    with pytest.raises(PgonceError, match="read-only"):
        replace(desk.clerk, patience_s=0.01).do(
            lambda transaction: read_only(transaction).rows("insert_job", job="planted")
        )
    assert desk.sql("select * from pgonce.job") == []


rows = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from((-3, 0, 5, 7)), st.sampled_from("xy")), min_size=1, max_size=14
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=rows, second=rows, chunk_rows=st.integers(1, 5), chunks=st.integers(0, 3))
def test_the_plan_of_any_state_is_what_the_run_then_reports(
    desk: Desk, first: Any, second: Any, chunk_rows: int, chunks: int
) -> None:
    """New, resumed after a stop, or over events that another input brought: plan and run agree in rows and cents."""
    job = f"job-{next(_numbers)}"
    options: dict[str, Any] = {"job": job, "chunk_rows": chunk_rows, "also": True}
    desk.run(desk.csv(first), **options)
    path = desk.csv(second)
    watching, stop = stop_after(chunks)
    with suppress(Interrupted):
        desk.run(path, observer=watching, interrupted=stop, **options)
    found = plan_of(desk, path, **options)
    done = desk.run(path, **options)
    assert (found.start, found.run, found.run_exit_code) == (done.start, done.run, done.exit_code)
    assert (found.how == "recognised") == done.shortcut
    again, more = plan_of(desk, path, **options), desk.run(path, **options)
    assert (again.run, again.how == "recognised") == (more.run, more.shortcut)


def test_a_resumed_run_is_planned_from_its_position(desk: Desk) -> None:
    """The plan says from which line on it counts, and the counts of the whole run begin with what is stored."""
    path = desk.csv([(n, n, "x") for n in range(1, 11)])
    watching, stop = stop_after(2)
    with pytest.raises(Interrupted):
        desk.run(path, chunk_rows=2, observer=watching, interrupted=stop)
    found = plan_of(desk, path)
    assert (found.how, found.from_line, found.owner) == ("resumed", 5, None)
    assert (found.start.applied.rows, found.run.applied.rows) == (6, 10)
    assert (found.run_exit_code, found.exit_code) == (0, 0)


def test_pending_events_are_planned_as_applied(desk: Desk) -> None:
    """A pending event below its budget would be applied by whichever row names it; above it stays pending."""
    path = desk.csv([("a", 5, "x"), ("b", 6, "x")])
    desk.run(path)
    desk.sql("alter table pgonce.event disable trigger all; alter table pgonce.effect disable trigger all")
    desk.sql("delete from pgonce.effect")
    desk.sql("update pgonce.event set status = 'pending', attempts = case event_id when 'a' then 1 else 9 end")
    desk.sql("alter table pgonce.event enable always trigger event_keep; update pgonce.run set touched = true")
    for each in (path, desk.csv([("b", 6, "x"), ("a", 5, "x"), ("a", 5, "x")])):
        found, again = plan_of(desk, each), plan_of(desk, each)
        assert found == again
        assert (found.start.applied.rows, found.start.pending.rows, found.run_exit_code) == (1, 1, 75)
    found = plan_of(desk, path)
    assert found.how == "replayed"
    done = desk.run(path)
    assert (found.start, found.run, found.run_exit_code) == (done.start, done.run, done.exit_code)


def test_a_live_owner_is_named_and_a_gone_one_is_followed(desk: Desk) -> None:
    """The plan says that the run would be refused (76), and by whom; with --take-over it would not."""
    path, gate, clerk = desk.csv([(n, n, "x") for n in range(1, 11)]), Gate(2), desk.make_clerk()
    with in_thread(desk.run, path, clerk=clerk, chunk_rows=2, observer=Watching(gate)):
        assert gate.reached.wait(30)
        found, taking = plan_of(desk, path), plan_of(desk, path, take_over=True)
        gate.opened.set()
    assert found.owner is not None
    assert (found.owner_alive, found.run_exit_code, found.exit_code) == (True, 76, 3)
    assert (taking.run_exit_code, taking.from_line) == (0, 5)
    desk.sql("update pgonce.start set ended_at = null; update pgonce.run set finished_at = null")
    clerk.session.close()
    gone = until(
        lambda: (seen := plan_of(desk, path)).owner_alive is False and seen, "a plan that finds the owner gone"
    )
    assert (gone.owner, gone.run_exit_code) == (found.owner, 0)


def test_what_the_run_would_refuse_the_plan_refuses(desk: Desk) -> None:
    """Another definition, content that was taken, a missing column: the same exceptions, and nothing stored."""
    path = desk.csv([("a", 5, "x")])
    with pytest.raises(ConfigurationError, match="no column 'price'"):
        plan_of(desk, path, amount="price")
    assert desk.sql("select * from pgonce.job") == []
    desk.run(path)
    with pytest.raises(DefinitionChanged, match="amount: stored amount, now none"):
        plan_of(desk, path, amount=None)
    with pytest.raises(ContentTaken, match=r"run 1 .*job 'pay', now 'other'"):
        plan_of(desk, path, job="other")
    assert plan_of(desk, path, job="other", also=True).start.applied.rows == 1


@pytest.mark.parametrize(
    ("options", "line"), [({"on_error": "stop"}, 3), ({"max_rejected": 2}, 6), ({"checkpoint": "all"}, 3), ({}, None)]
)
def test_the_row_that_would_end_the_run_is_named(desk: Desk, options: dict[str, Any], line: int | None) -> None:
    """The plan names the line, and the run stops there."""
    path = desk.csv(MIXED)
    found = plan_of(desk, path, **options)
    assert (found.stops_at, found.run_exit_code) == (line, 1)
    if line:
        with pytest.raises(StopRequested, match=f"line {line}: "):
            desk.run(path, **options)


def test_findings_are_bounded_and_the_rest_is_counted(desk: Desk) -> None:
    """An input of nothing but bad rows does not fill the memory with reasons."""
    found = plan_of(desk, desk.csv([("", n, "x") for n in range(50)]), findings_max=3)
    assert ([bad.line for bad in found.findings], found.findings_left_out) == ([2, 3, 4], 47)


PLAN = """
import resource, sys
from pgonce.api.plan import plan
from pgonce.api.run import order
from pgonce.model.limits import Limits
what = order(job="pay", key="id", amount="amount", limits=Limits(chunk_rows=500))
found = plan(sys.argv[1], what, dsn=sys.argv[2])
print(found.start.applied.rows, found.start.already.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_the_memory_of_a_plan_does_not_grow_with_the_input(desk: Desk) -> None:
    """The ids and payloads of an input that is not stored yet are on disk: 30 MB of them fit into a few."""

    def peak_kib(count: int) -> int:
        def lines() -> Any:
            for number in itertools.chain(range(count), range(0, count, 10)):
                yield f"event-{number:020d},{number},{'x' * 300}\n"

        path = desk.folder / f"{count}.csv"
        with path.open("w") as out:
            out.write("id,amount,note\n")
            out.writelines(lines())
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        done = subprocess.run(
            [sys.executable, "-c", PLAN, str(path), desk.dsn],
            capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        applied, already, peak = map(int, done.stdout.split())
        assert (applied, already) == (count, count // 10)
        return peak

    assert peak_kib(80_000) - peak_kib(2_000) < 16 * 1024
