"""Plan a run: what it would do to every row, found by reading only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pgonce.db.transaction import Transaction
from pgonce.engine import job as jobs
from pgonce.engine import ownership, register
from pgonce.engine.bookkeeping import Clerk, read_only
from pgonce.engine.compare import Comparison
from pgonce.engine.counting import count_run
from pgonce.engine.forecast import BadRow, Forecast
from pgonce.engine.job import StoredJob
from pgonce.engine.reading import chunks
from pgonce.engine.register import Identity, RegisteredRun
from pgonce.engine.run import Order, notes_of, repeated, require_columns, require_identity, settled_before
from pgonce.engine.seen import seen_events
from pgonce.errors import Interrupted
from pgonce.model.cursor import Cursor, Position
from pgonce.model.outcome import Counts
from pgonce.model.report import exit_code_of
from pgonce.model.row import RowReader
from pgonce.sources import Input

# The budget of a job that is not stored yet does not matter: none of its events is.
UNKNOWN_BUDGET = 1

# Enough to see what is wrong with an input; the counts say how many more there are.
FINDINGS_SHOWN = 20

FOUND_NOTHING, FOUND_SOMETHING = 0, 3

# As for a run that would be refused because a live start owns it, or that would stop at a bad row.
OWNED, STOPPED = 76, 1

EFFECT_NOTE = "the effect is not run by a plan; rows that it would refuse are counted as applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do. ``start`` counts what this start would do, ``run`` what the whole run would come to.

    ``how`` is ``new``, ``resumed`` (from ``from_line`` on), ``replayed`` (a finished input that would be read again) or
    ``recognised`` (a finished input that would be answered without reading). ``owner`` is who owns the run now.
    ``stops_at`` is the line of the bad row that would end the run, None if none would. ``run_exit_code`` is what the
    run would end with, as far as reading can tell.
    """

    job: str
    job_known: bool
    kind: str
    input_name: str
    input_bytes: int
    source: str
    database: str
    run_id: int | None
    how: str
    from_line: int
    owner: str | None
    owner_alive: bool
    start: Counts
    run: Counts
    findings: tuple[BadRow, ...]
    findings_left_out: int
    stops_at: int | None
    notes: tuple[str, ...] = field(default=())
    run_exit_code: int

    @property
    def exit_code(self) -> int:
        """0 if the run would complete with nothing bad, else 3."""
        return FOUND_SOMETHING if self.run_exit_code else FOUND_NOTHING

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "version": 1,
            "job": self.job,
            "job_known": self.job_known,
            "kind": self.kind,
            "input": self.input_name,
            "input_bytes": self.input_bytes,
            "source": self.source,
            "database": self.database,
            "run": self.run_id,
            "how": self.how,
            "from_line": self.from_line,
            "owner": self.owner,
            "owner_alive": self.owner_alive,
            "this_start": self.start.as_dict(),
            "whole_run": self.run.as_dict(),
            "findings": [{"line": bad.line, "kind": bad.kind, "reason": bad.reason} for bad in self.findings],
            "findings_left_out": self.findings_left_out,
            "stops_at": self.stops_at,
            "notes": list(self.notes),
            "run_exit_code": self.run_exit_code,
            "exit_code": self.exit_code,
        }


def plan(
    clerk: Clerk,
    source: Input,
    order: Order,
    *,
    findings_max: int = FINDINGS_SHOWN,
    interrupted: Callable[[], bool] = lambda: False,
) -> Plan:
    """Say what a run of this order over this input would do, in constant memory, and write nothing.

    Every transaction is read only, and the effect is not run. Raises what the run would raise before its first chunk:
    ConfigurationError, DefinitionChanged, ContentTaken.
    Safe to re-run: it only reads.
    """
    stored, known = _definition(clerk, source, order)
    identity = Identity.of(source, stored, kind=order.kind, source_text=order.source)
    run = _look(clerk, lambda transaction: _registered(transaction, identity, also=order.also))
    owner, owner_alive, position = _standing(clerk, run)
    found = _Ground(clerk, source, order, stored, run, position)
    if run is not None and settled_before(clerk, order.job, run):
        how, outcome = "recognised", _recognise(found, run, findings_max)
    else:
        how = "new" if run is None or not (run.finished or position.offset) else "resumed"
        how = "replayed" if run is not None and run.finished else how
        outcome = _read(found, findings_max, interrupted)
    notes = notes_of(clerk, source, stored, identity)
    start, whole, findings, left_out, stops_at = outcome
    owned = owner_alive and not order.take_over and how != "recognised"
    return Plan(
        job=order.job,
        job_known=known,
        kind=order.kind,
        input_name=source.name,
        input_bytes=source.size,
        source=order.source,
        database=clerk.session.target.label,
        run_id=run.run_id if run else None,
        how=how,
        from_line=0 if how in ("new", "replayed") else position.lines,
        owner=owner,
        owner_alive=owner_alive,
        start=start,
        run=whole,
        findings=findings,
        findings_left_out=left_out,
        stops_at=stops_at,
        notes=(*notes, EFFECT_NOTE) if order.effect and order.kind == "apply" else notes,
        run_exit_code=OWNED if owned else STOPPED if stops_at is not None else exit_code_of(whole),
    )


Outcome = tuple[Counts, Counts, tuple[BadRow, ...], int, int | None]


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a plan stands on: the input, the order, and what is stored of its job and run."""

    clerk: Clerk
    source: Input
    order: Order
    stored: StoredJob
    run: RegisteredRun | None
    position: Position


def _look(clerk: Clerk, body: Callable[[Transaction], Any]) -> Any:
    return clerk.do(lambda transaction: body(read_only(transaction)), commit=False)


def _definition(clerk: Clerk, source: Input, order: Order) -> tuple[StoredJob, bool]:
    """Find the definition a run would use: the stored one, which has to be the one given, or the one it would store."""
    require_identity(order.definition, source)
    if source.columns is not None:
        require_columns(order.definition.missing_from(source.columns), source)
    jobs.check_name(order.job)
    stored: StoredJob | None = _look(clerk, lambda transaction: jobs.find(transaction, order.job))
    known = stored is not None
    if stored is None:
        stored = StoredJob(job=order.job, version=1, definition=order.definition, attempt_budget=UNKNOWN_BUDGET)
    jobs.refuse_other(stored, order.definition)
    stored = replace(stored, definition=stored.definition.resolved(source.columns))
    if source.columns is not None:
        require_columns(stored.definition.missing_from(source.columns), source)
    return stored, known


def _registered(transaction: Transaction, identity: Identity, *, also: bool) -> RegisteredRun | None:
    found = register.find(transaction, identity)
    if found is None:
        register.refuse_taken(transaction, identity, also=also)
    return found


def _standing(clerk: Clerk, run: RegisteredRun | None) -> tuple[str | None, bool, Position]:
    """Find who owns a run, whether that start is alive, and up to where the run is settled."""
    nothing = Cursor.start().position
    if run is None or not run.epoch:
        return None, False, nothing

    def body(transaction: Transaction) -> tuple[str | None, bool, Position]:
        start = transaction.row("read_start", run_id=run.run_id, epoch=run.epoch)
        if start is None:
            return None, False, nothing
        position, ended = Position(start[1], start[2], start[3]), start[12] is not None
        if ended:
            return None, False, position
        return start[7], ownership.alive(transaction, clerk.session, start), position

    found: tuple[str | None, bool, Position] = _look(clerk, body)
    return found


def _recognise(ground: _Ground, run: RegisteredRun, findings_max: int) -> Outcome:
    def body(transaction: Transaction) -> tuple[Counts, list[BadRow]]:
        rows = transaction.rows("read_bad_rows", job=ground.order.job, run_id=run.run_id, at_most=findings_max)
        return count_run(transaction, ground.order.job, run.run_id), [BadRow(*row) for row in rows]

    whole, bad = _look(ground.clerk, body)
    own = whole.failed.rows + whole.conflict.rows + whole.rejected.rows
    return repeated(whole), whole, tuple(bad), max(0, own - len(bad)), None


def _read(ground: _Ground, findings_max: int, interrupted: Callable[[], bool]) -> Outcome:
    clerk, source, order, run = ground.clerk, ground.source, ground.order, ground.run
    replay = run is not None and run.finished
    before = Counts() if run is None else _look(clerk, lambda found: count_run(found, order.job, run.run_id))
    begin = Cursor.start() if replay else source.cursor(ground.position)
    reader = RowReader(ground.stored.definition, order.source)
    limits = order.limits
    with seen_events() as seen:
        forecast = Forecast(
            clerk=clerk,
            job=order.job,
            run_id=run.run_id if run else None,
            adopt=order.kind == "adopt",
            attempt_budget=ground.stored.attempt_budget,
            comparison=Comparison(ground.stored.definition, order.redact),
            input_name=source.name,
            seen=seen,
            findings_max=findings_max,
            allowed=0 if limits.stops_at_bad_row else limits.max_rejected,
            bad=before.failed.rows + before.conflict.rows + before.rejected.rows,
        )
        for chunk in chunks(source, reader, begin, lambda: limits.chunk_rows):
            if interrupted():
                raise Interrupted("stopped as asked; a plan writes nothing, run it again at any time")
            forecast.take(chunk)
    whole = forecast.whole(before, replay=replay)
    return forecast.start, whole, tuple(forecast.findings), forecast.findings_left_out, forecast.stops_at
