"""What a clean run does: the points that it meets, the state that it leaves, and what differs by itself.

Whatever would let a program be called safe without having been tested is refused here: a program that does not
connect, that fails by itself, that changes nothing which is compared, or that is another one at every run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import psycopg

from pgonce.crashtest import references, workdir
from pgonce.crashtest import shape as shapes
from pgonce.crashtest import state as states
from pgonce.crashtest.lane import Lane, Ran
from pgonce.crashtest.limits import CLEAN_S_MAX, KNOCK_S_MAX, RUN_S_MIN, RUN_TIMES_CLEAN, VALUE_CHARACTERS_MAX
from pgonce.crashtest.points import Met
from pgonce.crashtest.shape import Shape
from pgonce.crashtest.state import State
from pgonce.crashtest.verdict import Evidence, Verdict
from pgonce.errors import Inconclusive

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is compared and how; names are as a person writes them (``table``, ``schema.table``, ``table.column``)."""

    tables: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    log_tables: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    invariants: tuple[str, ...] = ()
    invariants_only: bool = False
    ok_exits: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True)
class Baseline:
    """What every point is compared with."""

    met: tuple[Met, ...]
    shape: Shape
    compared: frozenset[str]
    before: State
    clean: State
    files: dict[str, str]
    effect: tuple[str, ...]
    left_out: tuple[str, ...]
    run_s_max: float
    references: tuple[str, ...] = ()
    again: tuple[Verdict, str] = (Verdict.SAFE, "")
    again_evidence: Evidence = field(default_factory=Evidence)
    again_output: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)


def probe(lane: Lane) -> None:
    """Raise Inconclusive if the program, with every login refused, does not try to log in."""
    lane.reset()
    knocked, output = lane.knocks(KNOCK_S_MAX)
    if not knocked and lane.has_declined_tls:
        raise Inconclusive(
            "the program asked for TLS and went away when there was none, so it was not tested. Let its own address "
            f"say sslmode=disable for the test, by --env or --template.{_said(output)}"
        )
    if not knocked:
        raise Inconclusive(
            "the program did not connect to the database it was given, so it was not tested: it ended, or "
            f"{KNOCK_S_MAX:.0f} s passed, before it asked for a connection there. If it fails before, mend it (--env "
            "NAME=VALUE sets a variable). If it looks for its database elsewhere than PGHOST, PGPORT and DATABASE_URL "
            "say, hand the address over with --env NAME={dsn}, --template FILE or --listen PORT."
            f"{_said(output)}"
        )


def clean_run(lane: Lane, rules: Rules, *, limit_s: float | None, skips_numbers: bool = False) -> Ran:
    """Run the program from the pristine state without a fault. Raises Inconclusive if that does not go well.

    With ``skips_numbers`` it gets other numbers from sequences, as after a run that was rolled back.
    """
    lane.reset()
    if skips_numbers:
        lane.base.skip_numbers()
    ran = lane.run(limit_s or CLEAN_S_MAX)
    if ran.ended.left_behind:
        names = ", ".join(ran.ended.left_behind[:3])
        raise Inconclusive(
            f"the program did not end within {limit_s or CLEAN_S_MAX:.0f} s without any fault; still there: {names}. "
            f"Give it --limit SECONDS, or keep it in the foreground.{_said(ran.output)}"
        )
    if ran.ended.exit_code not in rules.ok_exits:
        raise Inconclusive(
            f"without any fault the program ended with exit code {ran.ended.exit_code}, so there is nothing to compare "
            f"with. Make it run on the state that --setup or --dsn gives.{_said(ran.output)}"
        )
    if len(ran.trace.databases) > 1:
        raise Inconclusive(
            f"the program uses several databases ({', '.join(sorted(ran.trace.databases))}); one is compared, so what "
            "it does in the others would go unseen. Test it with one database at a time."
        )
    if not ran.trace.met:
        raise Inconclusive(f"without any fault the program sent nothing to the database.{_said(ran.output)}")
    if not lane.base.exists():
        raise Inconclusive("the program drops its own database; what is left of it cannot be compared")
    return ran


def establish(lane: Lane, rules: Rules, *, limit_s: float | None, tell: Tell) -> Baseline:
    """Probe, run twice from the same state, and find out what there is to compare. Raises Inconclusive."""
    tell("probing whether the program connects")
    probe(lane)
    tell("a clean run, and another one, to see what differs by itself")
    first = clean_run(lane, rules, limit_s=limit_s)
    files = workdir.digest_files(lane.work, rules.files)
    lane.base.keep_as_clean()
    second, (shape, left_out, compared) = _second_run(lane, rules, limit_s=limit_s)
    other_files = workdir.digest_files(lane.work, rules.files)
    stable_files = {name: digest for name, digest in files.items() if other_files.get(name) == digest}
    left_out += tuple(f"file {name}" for name in sorted((files.keys() | other_files.keys()) - stable_files.keys()))
    with lane.base.connected(lane.base.pristine) as connection:
        before = states.read_state(connection, shape, only=compared)
    with lane.base.connected(lane.base.clean) as connection:
        clean = states.read_state(connection, shape, only=compared)
        for text in broken(connection, rules.invariants):
            raise Inconclusive(f"an invariant does not even hold after a clean run: {text}")
    effect = _effect(before, clean, compared)
    changed_files = files != workdir.digest_files(lane.pristine, rules.files)
    if not effect and not (rules.invariants and rules.invariants_only) and not changed_files:
        raise Inconclusive(
            "a clean run changes nothing that is compared, so nothing could be doubled or lost. Give it something to "
            f"do with --setup{', or compare more: ' + ', '.join(left_out) + ' is left out' if left_out else ''}."
        )
    longest = max(first.ended.took_s, second.ended.took_s)
    again = {one.point for one in second.trace.met}
    unsteady = [one for one in first.trace.met if one.point not in again]
    notes = (
        (f"{len(unsteady)} of {len(first.trace.met)} points came in only one of two clean runs",) if unsteady else ()
    )
    return Baseline(
        met=tuple(first.trace.met),
        shape=shape,
        compared=compared,
        before=before,
        clean=clean,
        files=stable_files,
        effect=effect,
        left_out=left_out,
        run_s_max=limit_s or max(RUN_S_MIN, RUN_TIMES_CLEAN * longest),
        references=references.told(shape),
        notes=notes,
    )


def _second_run(
    lane: Lane, rules: Rules, *, limit_s: float | None
) -> tuple[Ran, tuple[Shape, tuple[str, ...], frozenset[str]]]:
    """Run again from the same state and compare; numbers are skipped, since after a fault they will be, too.

    So a column that holds a generated key without a foreign key to say so is found out. A program that cannot bear
    other numbers is run without that.
    """
    with contextlib.suppress(Inconclusive):
        ran = clean_run(lane, rules, limit_s=limit_s, skips_numbers=True)
        return ran, _what_differs(lane, rules)
    ran = clean_run(lane, rules, limit_s=limit_s)
    return ran, _what_differs(lane, rules)


def _what_differs(lane: Lane, rules: Rules) -> tuple[Shape, tuple[str, ...], frozenset[str]]:
    """Compare two clean runs; leave out the columns whose values differ, and refuse what cannot be compared then."""
    base = lane.base
    with base.connected(base.clean) as first, base.connected(base.work) as second:
        plain = states.read_state(first, Shape())
        catalogue = plain.catalogue
        _refuse_unknown(rules, catalogue)
        compared = (
            frozenset(
                name for name in catalogue if (not rules.tables or name in rules.tables) and name not in rules.ignore
            )
            - rules.log_tables
        )
        ignored = shapes.names_of([name for name in rules.ignore if name not in catalogue], catalogue)
        shape = Shape(ignored=ignored)
        differing = _differing_tables(first, second, shape, compared)
        left_out: dict[str, frozenset[str]] = {}
        for name in differing:
            table = catalogue[name]
            here, there = states.column_digests(first, table), states.column_digests(second, table)
            columns = {column for column in here if here[column] != there.get(column)} - shape.masked(table)
            left_out[name] = frozenset(columns)
        shape = Shape(left_out=left_out, ignored=ignored)
        still = _differing_tables(first, second, shape, compared)
        if not still:
            shape = references.find(
                (first, second),
                catalogue,
                shape,
                compared,
                is_same=lambda other: not _differing_tables(first, second, other, compared),
            )
    if still:
        raise Inconclusive(
            f"two clean runs from the same state leave different rows in {', '.join(still)}, and not only in single "
            "columns, so there is nothing to compare with. Leave them out with --ignore TABLE or --ignore TABLE.COLUMN."
        )
    told = tuple(f"{name}.{column}" for name, columns in sorted(shape.left_out.items()) for column in sorted(columns))
    return shape, told, compared


def _differing_tables(
    first: psycopg.Connection, second: psycopg.Connection, shape: Shape, compared: frozenset[str]
) -> list[str]:
    here = states.read_state(first, shape, only=compared)
    there = states.read_state(second, shape, only=compared)
    names = here.tables.keys() | there.tables.keys()
    return sorted(name for name in names if mark_of(here, name) != mark_of(there, name))


def mark_of(state: State, name: str) -> tuple[int, str] | None:
    """Return what tells a table's rows from others, None where there is no such table."""
    found = state.tables.get(name)
    return found.mark if found else None


def _effect(before: State, clean: State, compared: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in compared if mark_of(before, name) != mark_of(clean, name)))


def _refuse_unknown(rules: Rules, catalogue: Collection[str]) -> None:
    for name in [*rules.tables, *rules.log_tables, *(name for name in rules.ignore)]:
        table = name.rpartition(".")[0]
        if name not in catalogue and table not in catalogue:
            known = ", ".join(sorted(catalogue)) or "none"
            raise Inconclusive(f"there is no table {name!r} to compare or leave out; a clean run leaves: {known}")


def _said(output: str) -> str:
    return f"\nIt said last: {output[-1500:]}" if output else ""


def broken(connection: psycopg.Connection, invariants: tuple[str, ...]) -> list[str]:
    """Return the invariants that do not hold, with the first rows that they give."""
    found = []
    for text in invariants:
        try:
            rows = connection.execute(text.encode()).fetchmany(3)
        except psycopg.Error as error:
            found.append(f"{text}: {str(error).strip()}")
            continue
        if rows:
            found.append(f"{text}: {'; '.join(str(row) for row in rows)}"[: 2 * VALUE_CHARACTERS_MAX])
    return found
