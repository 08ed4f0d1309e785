"""Run a job over an input: from the open file to the last commit.

The way of one event: ``reading`` makes chunks of rows, ``settle`` commits each for certain, ``apply`` is what happens
inside its transaction, ``position`` moves in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from pgonce.db.drift import foreign_code
from pgonce.db.staging import refuse_columns
from pgonce.db.transaction import Transaction
from pgonce.engine.ahead import reading_ahead
from pgonce.engine.apply import Work
from pgonce.engine.batch import Columns
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.compare import Comparison
from pgonce.engine.counting import cluster_identity, count_run, count_start_and_run, count_used_up, replayed_open
from pgonce.engine.effect import RECORD, Effect, Script
from pgonce.engine.fast import Expected, Guess
from pgonce.engine.job import StoredJob, declare, fix_columns
from pgonce.engine.ownership import Claim, acquire, owner_name, release
from pgonce.engine.pace import Pace
from pgonce.engine.position import Held, PositionLost, PositionReset, require_stored, reread
from pgonce.engine.reading import chunks, columns
from pgonce.engine.register import Identity, RegisteredRun, changed_under_name, register
from pgonce.engine.settle import Settler
from pgonce.engine.whole import settle_whole
from pgonce.engine.workers import Ahead, Workers
from pgonce.errors import ConfigurationError, InvariantBroken, LeaseLost, OutcomeUnknown, PgonceError, Unreachable
from pgonce.model.chunk import Chunk
from pgonce.model.cursor import Cursor
from pgonce.model.definition import Definition
from pgonce.model.limits import Limits
from pgonce.model.observer import Observer
from pgonce.model.outcome import Counts
from pgonce.model.policy import DAMAGED
from pgonce.model.report import RunReport, exit_code_of
from pgonce.model.row import RowReader
from pgonce.sources import Input

# Smaller chunks are read where they are written: handing them over would take longer than reading them.
AHEAD_ROWS_MIN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run: the job and its definition, the effect, and how this start goes about it.

    ``kind`` is ``apply``, or ``adopt`` for rows that an older program has applied already.
    """

    job: str
    definition: Definition
    source: str = ""
    kind: str = "apply"
    effect: Script | None = None
    verify: Script | None = None
    limits: Limits = field(default_factory=Limits)
    also: bool = False
    take_over: bool = False
    wait_s: float = 0.0
    redact: frozenset[str] = frozenset()


def run(clerk: Clerk, source: Input, order: Order, *, observer: Observer, interrupted: Callable[[], bool]) -> RunReport:
    """Settle every row of an open input for a job, each event once, and report from committed rows.

    Raises the exceptions of ``pgonce.errors``; whatever is raised, committed chunks stay and nothing else does.
    Safe to re-run: that is the point.
    """
    stored, registered = _enter(clerk, source, order)
    effect = _effect(order, stored, source)
    notes = notes_of(clerk, source, stored, Identity.of(source, stored, kind=order.kind, source_text=order.source))
    if settled_before(clerk, order.job, registered):
        return _repeat(clerk, source, order, registered, notes)
    order, why_one = _workers_allowed(clerk, order)
    notes += why_one
    held = acquire(clerk, _claim(stored, order, registered, source))
    settler = Settler(
        clerk=clerk,
        work=_work(order, stored, registered.run_id, held.epoch),
        held=held,
        limits=order.limits,
        effect=effect,
        observer=observer,
        interrupted=interrupted,
        guess=_guess(clerk, held),
        bad_rows=_bad_rows(clerk, order.job, held),
    )
    settler.hook(lambda: observer.began(source.name, source.size, held.position))
    try:
        return _settle_and_finish(settler, source, order, effect, notes)
    except (LeaseLost, OutcomeUnknown, Unreachable):
        raise
    except PgonceError as error:
        if error.sqlstate not in DAMAGED:
            release(clerk, settler.held, f"stopped: {type(error).__name__}")
        raise


def _enter(clerk: Clerk, source: Input, order: Order) -> tuple[StoredJob, RegisteredRun]:
    """Store or check the definition and register the run, in one transaction: a refused command leaves no trace."""

    def body(transaction: Transaction) -> tuple[StoredJob, RegisteredRun]:
        declared = declare(transaction, order.job, order.definition, source.columns, owner_name())
        stored = fix_columns(transaction, declared, source.columns)
        if source.columns is not None:
            require_columns(stored.definition.missing_from(source.columns), source)
        identity = Identity.of(source, stored, kind=order.kind, source_text=order.source)
        return stored, register(transaction, identity, also=order.also)

    require_identity(order.definition, source)
    if source.columns is not None:
        require_columns(order.definition.missing_from(source.columns), source)
    if order.effect is not None and order.kind == "apply":
        record = (RECORD,) if source.columns is None else ()
        refuse_columns((*(source.columns or _known_fields(order.definition)), *record))
    return clerk.do(body)


def require_columns(missing: Sequence[str], source: Input) -> None:
    """Raise ConfigurationError, naming what the input has, if it lacks columns that are needed."""
    if missing:
        raise ConfigurationError(
            f"{source.name} has no column {', '.join(map(repr, missing))}; its columns are "
            f"{', '.join(map(repr, source.columns or ()))}"
        )


def require_identity(definition: Definition, source: Input) -> None:
    """Raise ConfigurationError if the input's format says what identifies an event, and the definition another way."""
    if source.identity is None:
        return
    source_column, key = source.identity
    if (definition.source_column, definition.key) != (source_column, (key,)):
        raise ConfigurationError(
            f"{source.name}: a CloudEvent is identified by its source and its id; say --key {key} --source-column "
            f"{source_column}. Events that are known by other fields can be read one a line with --format ndjson"
        )


def notes_of(clerk: Clerk, source: Input, stored: StoredJob, identity: Identity) -> tuple[str, ...]:
    """Say what a person should know about this input: new columns, and other content under a known name."""
    notes = []
    unknown = stored.definition.unknown_in(source.columns or ())
    if unknown:
        notes.append(
            f"new in {source.name} and not compared: {', '.join(map(repr, unknown))}. Name such columns with --ignore, "
            f"or take them into the payload with pgonce job change {stored.job}"
        )
    changed = clerk.do(lambda transaction: changed_under_name(transaction, identity, source.name), commit=False)
    return (*notes, changed) if changed else tuple(notes)


def _effect(order: Order, stored: StoredJob, source: Input) -> Effect | None:
    if order.effect is None or order.kind == "adopt":
        return None
    definition = stored.definition
    columns = source.columns if source.columns is not None else _known_fields(definition)
    record = source.columns is None
    return Effect(script=order.effect, verify=order.verify, columns=columns, types=definition.types, record=record)


def _known_fields(definition: Definition) -> tuple[str, ...]:
    """The columns that records without a header are known to have: those the definition names."""
    return tuple(dict.fromkeys((*definition.named_columns, *(definition.columns or ()))))


def settled_before(clerk: Clerk, job: str, registered: RegisteredRun) -> bool:
    """May the first answer be repeated without reading? Not if something is open, was touched, or is missing."""
    outcome = registered.outcome
    if not registered.finished or registered.touched or outcome is None:
        return False
    counts = clerk.do(lambda transaction: count_run(transaction, job, registered.run_id), commit=False)
    same = counts.balanced and counts.as_dict() == outcome["counts"]
    settled = same and not counts.pending.rows and not outcome["replayed_open"]
    return settled and outcome["cluster"] == clerk.do(cluster_identity, commit=False)


def _claim(stored: StoredJob, order: Order, registered: RegisteredRun, source: Input) -> Claim:
    return Claim(
        job=stored.job,
        version=stored.version,
        run_id=registered.run_id,
        replay=registered.finished,
        checkpoint=order.limits.checkpoint,
        input_name=source.name,
        take_over=order.take_over,
        wait_s=order.wait_s,
    )


def _work(order: Order, stored: StoredJob, run_id: int, epoch: int) -> Work:
    return Work(
        job=order.job,
        run_id=run_id,
        epoch=epoch,
        who=owner_name(),
        adopt=order.kind == "adopt",
        attempt_budget=stored.attempt_budget,
        comparison=Comparison(stored.definition, order.redact),
    )


def _guess(clerk: Clerk, held: Held) -> Guess:
    """Take the events of a finished input to be stored, others to be new; ask the server whether it would take COPY."""
    [(allowed,)] = clerk.do(lambda tx: tx.rows("copy_allowed", schema=tx.schema), commit=False)
    return Guess(Expected.REPLAYED if held.replay else Expected.NEW, may_copy=bool(allowed))


def _workers_allowed(clerk: Clerk, order: Order) -> tuple[Order, tuple[str, ...]]:
    """Have one worker work, and say why, where code of the user's would run ahead of its turn."""
    if order.limits.workers == 1:
        return order, ()
    foreign = clerk.do(foreign_code, commit=False)
    if not foreign:
        return order, ()
    note = (
        f"one worker instead of {order.limits.workers}: what is not pgonce's may run with each row, and its turn would "
        f"not have come ({', '.join(foreign)})"
    )
    return replace(order, limits=replace(order.limits, workers=1)), (note,)


def _bad_rows(clerk: Clerk, job: str, held: Held) -> int:
    """Count the bad rows that the run has already; a start that reads a finished input again meets them anew."""
    if held.replay:
        return 0
    counts = clerk.do(lambda transaction: count_run(transaction, job, held.run_id), commit=False)
    return counts.failed.rows + counts.conflict.rows + counts.rejected.rows


def _settle_and_finish(
    settler: Settler, source: Input, order: Order, effect: Effect | None, notes: tuple[str, ...]
) -> RunReport:
    """Settle the input and finish the run; where acknowledged commits are gone meanwhile, go on from what is stored."""
    reader = RowReader(settler.work.comparison.definition, order.source)
    while True:
        try:
            _settle_input(settler, source, reader, effect)
            return _finish(settler, source, order, notes)
        except PositionReset as reset:
            settler.held = reset.held
        except PositionLost:
            settler.held = reread(settler.clerk, settler.held)
        settler.bad_rows = _bad_rows(settler.clerk, order.job, settler.held)


def _settle_input(settler: Settler, source: Input, reader: RowReader, effect: Effect | None) -> None:
    """Settle the input from the held position to its end. Raises PositionReset when acknowledged commits are gone."""
    pace, clock = Pace(settler.limits), settler.clerk.clock
    by_columns = settler.limits.rows >= AHEAD_ROWS_MIN and (effect is None or effect.takes_columns)

    def read() -> Iterator[Chunk | Columns]:
        begin = Cursor.start() if settler.held.replay else source.cursor(settler.held.position)
        for part in (columns if by_columns else chunks)(source, reader, begin, pace.rows):
            if settler.limits.workers == 1 and not isinstance(part, Chunk):
                settler.guess.prepare(settler.work, part, None if effect is None else effect.columns)
            yield part

    if settler.limits.checkpoint == "all":
        settle_whole(settler, read, effect)
        return
    ahead = reading_ahead(read()) if settler.limits.rows >= AHEAD_ROWS_MIN else nullcontext(read())
    with ahead as coming, _begun(settler, coming) as due:
        for chunk, begun in due:
            began_s = clock()
            settler.settle(chunk, begun)
            pace.took(clock() - began_s + (begun.seconds if begun else 0.0))
            del chunk, begun  # their rows are not kept while the next ones are waited for


@contextmanager
def _begun(
    settler: Settler, parts: Iterator[Chunk | Columns]
) -> Iterator[Iterator[tuple[Chunk | Columns, Ahead | None]]]:
    """Have workers begin the chunks ahead, if there are to be several."""
    if settler.limits.workers == 1:
        yield ((part, None) for part in parts)
        return
    with Workers(
        settler.clerk,
        parts,
        settler.applying,
        guess=settler.guess,
        count=settler.limits.workers,
        chunk_s=settler.limits.transaction_s,
        interrupted=settler.interrupted,
    ) as workers:
        yield ((ahead.applying.part, ahead) for ahead in workers.in_turn())


def _finish(settler: Settler, source: Input, order: Order, notes: tuple[str, ...]) -> RunReport:
    """Mark the run finished with its outcome, end the start, and report; all from what is committed.

    Raises PositionLost when what is stored is not what was settled: then the run is not finished.
    """
    clerk, held = settler.clerk, settler.held
    if held.position.offset != source.size or held.position.digest != source.digest:
        raise InvariantBroken(f"run {held.run_id} reached its end at byte {held.position.offset} of {source.size}")

    def body(transaction: Transaction) -> tuple[Counts, Counts, int]:
        transaction.row("lock_run", run_id=held.run_id)
        transaction.row("end_start", run_id=held.run_id, epoch=held.epoch, token=held.token, how="finished")
        start, whole = count_start_and_run(transaction, order.job, held.run_id, held.epoch)
        outcome = {
            "counts": whole.as_dict(),
            "replayed_open": replayed_open(transaction, held.run_id),
            "cluster": cluster_identity(transaction),
        }
        found = transaction.row("finish_run", run_id=held.run_id, epoch=held.epoch, outcome=json.dumps(outcome))
        if found is None:
            raise LeaseLost(f"run {held.run_id} was taken over before it was finished; every chunk of it is committed")
        require_stored(transaction, held)
        if not whole.balanced:
            raise InvariantBroken(
                f"run {held.run_id} does not balance: {whole.read.rows} rows and {whole.read.cents} cents were read, "
                f"{whole.accounted.rows} rows and {whole.accounted.cents} cents are accounted for. It is not finished; "
                "see pgonce reconcile"
            )
        used_up = count_used_up(transaction, order.job) if whole.pending.rows else 0
        return start, whole, used_up

    start, whole, used_up = clerk.do(body, run_id=held.run_id)
    report = _report(clerk, source, order, held.run_id, held.epoch, start, whole, notes, shortcut=False)
    return replace(report, used_up=used_up)


def _repeat(clerk: Clerk, source: Input, order: Order, registered: RegisteredRun, notes: tuple[str, ...]) -> RunReport:
    """Answer for a finished input what was answered first; for this start every row that was applied is `already`."""
    whole = clerk.do(lambda transaction: count_run(transaction, order.job, registered.run_id), commit=False)
    start = repeated(whole)
    return _report(clerk, source, order, registered.run_id, registered.epoch, start, whole, notes, shortcut=True)


def repeated(whole: Counts) -> Counts:
    """Count for a start that repeats a finished run's answer: every row that was applied is `already`."""
    return Counts(
        read=whole.read,
        already=whole.applied + whole.adopted + whole.already,
        failed=whole.failed,
        conflict=whole.conflict,
        rejected=whole.rejected,
    )


def _report(
    clerk: Clerk,
    source: Input,
    order: Order,
    run_id: int,
    epoch: int,
    start: Counts,
    whole: Counts,
    notes: tuple[str, ...],
    *,
    shortcut: bool,
) -> RunReport:
    return RunReport(
        job=order.job,
        run_id=run_id,
        epoch=epoch,
        kind=order.kind,
        input_name=source.name,
        source=order.source,
        database=clerk.session.target.label,
        checkpoint=order.limits.checkpoint,
        shortcut=shortcut,
        start=start,
        run=whole,
        notes=notes,
        exit_code=exit_code_of(whole),
    )
