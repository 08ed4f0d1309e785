"""A whole crash test: servers and lanes, the baseline, every trial, and the report."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import psycopg

from pgonce.crashtest import base as bases
from pgonce.crashtest import environment, guest, workdir
from pgonce.crashtest import lane as lanes
from pgonce.crashtest.base import Base
from pgonce.crashtest.baseline import Baseline, clean_run, establish
from pgonce.crashtest.copying import Original, from_copy, look_at
from pgonce.crashtest.explore import Result, Trial, attempt, rerun_without_fault, trials
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.lane import Lane
from pgonce.crashtest.limits import IN_MEMORY_BYTES_MAX, TRIES_TO_REACH
from pgonce.crashtest.plan import Plan, choose, nothing_chosen, points_of
from pgonce.crashtest.report import Report
from pgonce.crashtest.resume import Columns, Ledger, made_of, moved_by_setup
from pgonce.crashtest.state import State, read_state
from pgonce.crashtest.verdict import Verdict
from pgonce.errors import ConfigurationError, Inconclusive
from pgonce.server import memory_folder, scratch

Tell = Callable[[str], None]
OnResult = Callable[[Result, int, int], None]
# What a shell says of a program that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT

_MakesLane = Callable[[], contextlib.AbstractContextManager[Lane]]


def conduct(plan: Plan, *, tell: Tell, on_result: OnResult) -> Report:
    """Test a program. Raises Inconclusive when it cannot be tested, ConfigurationError for what cannot be set up.

    Safe to re-run: yes; it works on scratch servers and copies, which vanish with this process.
    """
    began = time.monotonic()
    plan = _with_faults(plan)
    ledger = Ledger(plan.resume, plan.command.argv)
    with contextlib.ExitStack() as opened:
        original = None
        if plan.original_dsn is not None or plan.original_database is not None:
            original = look_at(plan.original_dsn or "", plan.original_database)
            tell(f"copying the database {original.database!r}, which is only read")
        lane = _lanes(plan, original, opened, tell)
        first = opened.enter_context(lane())
        baseline = establish(first, plan.rules, limit_s=plan.limit_s, tell=tell)
        baseline = rerun_without_fault(first, baseline, plan.rules)
        baseline = dataclasses.replace(baseline, notes=(*first.base.notes, *baseline.notes))
        _tell_of_again(baseline, tell)
        todo, unbounded = choose(plan, baseline)
        if not todo:
            raise Inconclusive(nothing_chosen(plan, baseline))
        if plan.resume is not None:
            _see_that_it_holds(plan, first, baseline, lane, ledger)
        known = [found for trial in todo if (found := ledger.known(trial)) is not None]
        tried = {result.trial for result in known}
        waiting = [trial for trial in todo if trial not in tried]
        others = [opened.enter_context(lane()) for _ in range(min(plan.jobs, len(waiting)) - 1)]
        baselines = [baseline, *(_baseline_of(other, plan, baseline) for other in others)]
        stop_at = began + plan.time_s_max if plan.time_s_max is not None else None
        results, stopped_by = list(known), 0
        try:
            with contextlib.closing(_spread([first, *others], plan, baselines, waiting, stop_at, tell)) as coming:
                for result in coming:
                    results.append(result)
                    ledger.keep(result)
                    on_result(result, len(results), len(todo))
        except (KeyboardInterrupt, SystemExit) as stop:
            if not results:
                raise
            stopped_by = INTERRUPTED if isinstance(stop, KeyboardInterrupt) else int(stop.code or 1)
        every = trials(baseline.met, plan.faults)
        order = {trial: number for number, trial in enumerate(every)}
        results.sort(key=lambda result: order[result.trial])
        return Report(
            argv=plan.command.argv,
            baseline=baseline,
            results=tuple(results),
            points_met=len(baseline.met),
            left_out=0 if plan.only else len(every) - len(results),
            points_untried=len(unbounded - points_of(result.trial for result in results)),
            stopped_by=stopped_by,
            trials_chosen=len(todo),
            took_s=time.monotonic() - began,
            seed=plan.seed,
            faults=plan.faults,
            server=".".join(map(str, first.base.server.version)),
            not_isolated_because=first.not_isolated_because,
            dropped=first.dropped,
        )


def _tell_of_again(baseline: Baseline, tell: Tell) -> None:
    verdict, why = baseline.again
    if verdict.is_unsafe:
        tell(
            f"{verdict.value} by a second run without any fault: {why}. So it is not safe to run again; what "
            "follows shows where else. Ctrl-C ends it with a report"
        )


def _with_faults(plan: Plan) -> Plan:
    """Say which faults are tried; refuse what cannot be. Raises ConfigurationError."""
    if plan.on_server and plan.original_dsn is None and plan.original_database is None:
        raise ConfigurationError("--on-server clones a database where it is: name it with --dsn or --database")
    if plan.on_server and Fault.CRASH in plan.faults:
        raise ConfigurationError(
            "the fault 'crash' ends the whole server, and that of --dsn serves others: leave --on-server out, so that "
            "a copy is tested on a throw-away server, or leave this fault out"
        )
    possible = tuple(fault for fault in Fault if not (plan.on_server and fault is Fault.CRASH))
    return dataclasses.replace(plan, faults=plan.faults or possible)


def _lanes(plan: Plan, original: Original | None, opened: contextlib.ExitStack, tell: Tell) -> _MakesLane:
    """Prepare where the lanes will be, and return what makes one."""
    if plan.on_server and original is not None:
        is_small = workdir.bytes_of(plan.command.folder) <= IN_MEMORY_BYTES_MAX
        opened.enter_context(_explained(original))
        host = opened.enter_context(guest.hosting(original, folder=memory_folder() if is_small else None, tell=tell))
        inherited = opened.enter_context(environment.closed())
        return lambda: _lane_of(host, plan, inherited, tell)
    inherited = opened.enter_context(environment.closed())
    tell("making a scratch server" if plan.jobs == 1 else f"making {plan.jobs} scratch servers")
    return lambda: _lane(plan, original, inherited)


@contextlib.contextmanager
def _explained(original: Original) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise guest.explain(error, original) from error


@contextlib.contextmanager
def _lane_of(host: guest.Hosting, plan: Plan, inherited: Mapping[str, str], tell: Tell) -> Iterator[Lane]:
    base = host.base(plan.setup, tell=tell)
    with contextlib.closing(base), lanes.opened(base.server, base, plan.command, inherited=inherited) as lane:
        yield lane


@contextlib.contextmanager
def _lane(plan: Plan, original: Original | None, inherited: Mapping[str, str]) -> Iterator[Lane]:
    with contextlib.ExitStack() as opened:
        base = _made_in_memory(plan, original, opened)
        if base is None:
            base = opened.enter_context(_base(plan, original, None))
        yield opened.enter_context(lanes.opened(base.server, base, plan.command, inherited=inherited))


def _made_in_memory(plan: Plan, original: Original | None, opened: contextlib.ExitStack) -> Base | None:
    """Make the state on a server in memory, where a trial takes the least time; None if it is too much for that."""
    folder = memory_folder()
    bytes_known = (original.bytes if original else 0) + workdir.bytes_of(plan.command.folder)
    if folder is None or bytes_known > IN_MEMORY_BYTES_MAX:
        return None
    with contextlib.ExitStack() as tried:
        try:
            base = tried.enter_context(_base(plan, original, folder))
        except ConfigurationError as error:
            if bases.NO_SPACE not in str(error):
                raise
            return None
        if base.bytes() > IN_MEMORY_BYTES_MAX:
            return None
        opened.enter_context(tried.pop_all())
        return base


@contextlib.contextmanager
def _base(plan: Plan, original: Original | None, parent: Path | None) -> Iterator[Base]:
    with scratch(settings=bases.SETTINGS, parent=parent) as server:
        base = from_copy(server, original, plan.setup) if original else bases.from_setup(server, plan.setup)
        with contextlib.closing(base):
            yield base


def _see_that_it_holds(plan: Plan, first: Lane, baseline: Baseline, lane: _MakesLane, ledger: Ledger) -> None:
    """See that what an earlier start found still holds. Raises ConfigurationError.

    A set-up is made once more, to see what differs by itself at each; a clone on the server is never made so again.
    """
    moved: Columns = {}
    if plan.setup and not plan.on_server:
        with lane() as other:
            moved = moved_by_setup(first, other, baseline, plan.rules, limit_s=plan.limit_s)
    known = ledger.moved if ledger.moved is not None else moved
    ledger.begin(made_of(first, baseline, plan.rules, plan.command.assignments, known), moved=moved)


def _baseline_of(lane: Lane, plan: Plan, baseline: Baseline) -> Baseline:
    """Make the clean state in another lane, see that it is like the first one's, and return what to compare with there.

    Its own setup may have put other values there, a clock's for instance, so each lane is compared with itself. What
    has to be the same is how many rows there are and what they sum up to.
    """
    clean_run(lane, plan.rules, limit_s=plan.limit_s)
    lane.base.keep_as_clean()
    with lane.base.connected(lane.base.pristine) as connection:
        before = read_state(connection, baseline.shape, only=baseline.compared)
    with lane.base.connected(lane.base.clean) as connection:
        clean = read_state(connection, baseline.shape, only=baseline.compared)
    differing = [name for name in baseline.compared if _counts(clean, name) != _counts(baseline.clean, name)]
    if differing:
        raise Inconclusive(
            f"a clean run on a second server leaves other rows in {', '.join(sorted(differing))}; run with --jobs 1, "
            "or leave out what differs with --ignore"
        )
    return dataclasses.replace(baseline, before=before, clean=clean)


def _counts(state: State, name: str) -> tuple[int, dict[str, Decimal]] | None:
    found = state.tables.get(name)
    return (found.rows, dict(found.sums)) if found else None


def _spread(
    all_lanes: Sequence[Lane],
    plan: Plan,
    baselines: Sequence[Baseline],
    todo: Sequence[Trial],
    stop_at: float | None,
    tell: Tell,
) -> Generator[Result]:
    """Let every lane take trials until none is left or the time is over; yield results as they come."""
    waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
    for trial in todo:
        waiting.put(trial)
    done: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def work(lane: Lane, baseline: Baseline) -> None:
        try:
            while not stopped.is_set() and (stop_at is None or time.monotonic() < stop_at):
                done.put(_tried(lane, baseline, plan, waiting.get_nowait()))
        except queue.Empty:
            pass
        except BaseException as error:  # noqa: BLE001 (raised again by the thread that reads)
            done.put(error)
        finally:
            done.put(None)

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in zip(all_lanes, baselines, strict=True)]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            found = done.get()
            if found is None:
                left -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        tell("stopping when the trial in hand has ended; asked once more, at once")
        raise
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def _tried(lane: Lane, baseline: Baseline, plan: Plan, trial: Trial) -> Result:
    """Try; where the program takes different ways, give it a few chances to come to the point."""
    for _ in range(TRIES_TO_REACH):
        result = attempt(lane, baseline, plan.rules, trial, reruns=plan.reruns)
        if result.verdict is not Verdict.UNREACHED:
            break
    return result
