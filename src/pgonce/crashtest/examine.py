"""Compare what is there now with what a clean run leaves."""

from __future__ import annotations

import contextlib

import psycopg

from pgonce.crashtest import state as states
from pgonce.crashtest import workdir
from pgonce.crashtest.baseline import Baseline, Rules, broken, mark_of
from pgonce.crashtest.catalogue import Catalogue
from pgonce.crashtest.lane import Lane
from pgonce.crashtest.limits import TABLES_SHOWN_MAX
from pgonce.crashtest.state import Side, State, TableState
from pgonce.crashtest.verdict import Counted, Evidence, TableDifference, judge_table


def examine(lane: Lane, baseline: Baseline, rules: Rules, *, ended_well: bool, timed_out: bool) -> Evidence:
    """Look at the working database and folder; return everything that is not as a clean run leaves it."""
    base = lane.base
    if not base.exists():
        lost = TableDifference("(database)", None, None, None, why="the working database is not there any more")
        return Evidence(tables=(lost,), ended_well=ended_well, timed_out=timed_out)
    tables: tuple[TableDifference, ...] = ()
    schema: tuple[str, ...] = ()
    with base.connected(base.work) as connection:
        if not rules.invariants_only:
            now = states.read_state(connection, baseline.shape, only=baseline.compared)
            tables = _tables(lane, baseline, connection, now)
            schema = _schema(baseline, now)
        invariants = tuple(broken(connection, rules.invariants))
    files = workdir.digest_files(lane.work, rules.files) if rules.files else {}
    left_out = {name.removeprefix("file ") for name in baseline.left_out}
    differing = sorted((files.items() ^ baseline.files.items()), key=lambda item: item[0])
    return Evidence(
        tables=tables,
        schema=schema,
        files=tuple(dict.fromkeys(name for name, _ in differing if name not in left_out)),
        invariants=invariants,
        leftovers=tuple(f"the prepared transaction {gid!r}" for gid in base.prepared_transactions()),
        ended_well=ended_well,
        timed_out=timed_out,
    )


def _tables(lane: Lane, baseline: Baseline, connection: psycopg.Connection, now: State) -> tuple[TableDifference, ...]:
    differing = [name for name in sorted(baseline.compared) if mark_of(baseline.clean, name) != mark_of(now, name)]
    if not differing:
        return ()
    base, found = lane.base, []
    with contextlib.ExitStack() as opened:
        before = Side(opened.enter_context(base.connected(base.pristine)), _known(baseline.before))
        clean = Side(opened.enter_context(base.connected(base.clean)), _known(baseline.clean))
        here = Side(connection, _known(now))
        for number, name in enumerate(differing):
            is_shown = number < TABLES_SHOWN_MAX
            rows = states.differing_rows(before, clean, here, table=name, shape=baseline.shape) if is_shown else ()
            at_first, expected, found_now = (
                _counted(state.tables.get(name)) for state in (baseline.before, baseline.clean, now)
            )
            found.append(judge_table(name, at_first, expected, found_now, rows))
    return tuple(found)


def _known(state: State) -> Catalogue:
    return state.catalogue


def _counted(found: TableState | None) -> Counted | None:
    return Counted(found.rows, found.sums) if found else None


def _schema(baseline: Baseline, now: State) -> tuple[str, ...]:
    clean = baseline.clean.schema
    names = sorted(name for name in clean.keys() | now.schema.keys() if clean.get(name) != now.schema.get(name))
    return tuple(
        f"{name} is {'not there' if name not in now.schema else 'there' if name not in clean else 'another one'}"
        for name in names
    )
