"""Apply one chunk inside one transaction: the heart of pgonce.

Two doors lead to an effect, and both are shut behind it in the same transaction. A new event is claimed by inserting
its key: a second inserter waits for our commit and then finds it. A stored event that is pending or failed is locked
first and looked at afterwards. What is completed is final and is recognised without a lock.

Nothing here commits. The caller moves the position in the same transaction and commits both, or neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import lt

from pgonce.db.arrays import bigint_array, text_array
from pgonce.db.transaction import Transaction
from pgonce.engine.compare import Comparison, Stored
from pgonce.errors import InvariantBroken
from pgonce.model.chunk import Chunk
from pgonce.model.outcome import Tally
from pgonce.model.row import Finding, Key, Row, conflict

# Many more at a time, and the planner would rather read the whole table than look each of them up.
COMPLETED_AT_A_TIME = 500

SettleFirsts = Callable[[Transaction, "Work", "Settled", Sequence[Row]], object]
"""Settles rows in key order, each of another event, in the open transaction; so does what claims new ones."""


class Redo(Exception):
    """Another transaction stored some of these events meanwhile: roll back and look again. No attempt is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a start is doing, for every chunk of it: which run, as which start, and by which rules."""

    job: str
    run_id: int
    epoch: int
    who: str
    adopt: bool
    attempt_budget: int
    comparison: Comparison

    def owns(self, row: Row, event: Stored) -> bool:
        """Say whether this very row named the event first: an input that is read again meets its own rows."""
        return event.run_id == self.run_id and event.line == row.line


@dataclass(slots=True)
class Settled:
    """What one chunk came to; ``applied`` are the rows whose effect is due in this transaction.

    The tallies are what the position's row keeps; ``results`` tells each row once, to whoever looks on.
    ``copied`` is the number of those that were written as columns, and are not among ``applied``.
    """

    rows: int = 0
    cents: int = 0
    applied: list[Row] = field(default_factory=list)
    copied: int = 0
    findings: list[Finding] = field(default_factory=list)
    refused: list[tuple[Row, str]] = field(default_factory=list)
    already: Tally = field(default_factory=Tally)
    failed_again: Tally = field(default_factory=Tally)
    pending_again: Tally = field(default_factory=Tally)
    late: Tally = field(default_factory=Tally)
    bad: int = 0
    open_rows: Counter[str] = field(default_factory=Counter)
    """How many rows name an event that is ``failed`` or ``pending`` now."""
    included: Counter[str] = field(default_factory=Counter)
    attempts_left: int | None = None
    """How often the event that has the fewest attempts left may be tried over all starts, of those tried now."""

    @property
    def bad_rows(self) -> int:
        """How many rows a person has to look at: findings and refused events."""
        return self.bad + len(self.findings) + len(self.refused)

    def tries(self, left: int) -> None:
        """Note that an event is tried now that has this many attempts left, this one among them."""
        self.attempts_left = left if self.attempts_left is None else min(left, self.attempts_left)

    def replayed(self, row: Row, status: str, *, own: bool) -> None:
        """Count a row whose event was there before, by the state it is in.

        An event that is open and the row's ``own`` is counted where it stands, and not a second time here.
        """
        one = Tally(1, row.amount_cents)
        if status in ("failed", "pending"):
            self.open_rows[status] += 1
            if own:
                return
        if status == "failed":
            self.failed_again += one
        elif status == "pending":
            self.pending_again += one
        else:
            self.already += one

    @property
    def results(self) -> Counter[str]:
        """Count every row by its result."""
        kinds = Counter(finding.kind for finding in self.findings)
        own = Counter(applied=len(self.applied) + self.copied, already=self.already.rows)
        return own + kinds + self.open_rows + self.included

    def include(self, other: Settled) -> None:
        """Add another chunk's numbers to these. Its rows are not kept: there may be any number of chunks."""
        self.included += other.results
        self.included["already"] = 0
        self.rows += other.rows
        self.cents += other.cents
        self.already += other.already
        self.failed_again += other.failed_again
        self.pending_again += other.pending_again
        self.late += other.late
        self.bad += other.bad_rows


def apply_chunk(
    transaction: Transaction,
    work: Work,
    chunk: Chunk,
    effect: Callable[[Sequence[Row]], None],
    settled: Settled | None = None,
    settle_firsts: SettleFirsts | None = None,
) -> Settled:
    """Settle every row of a chunk in the open transaction; ``settled`` is filled on the way, to tell if it fails.

    ``effect`` is called with the rows to be applied now, at most once, and only if there are any. ``settle_firsts``
    may settle the rows that name an event for the first time in another way than ``settle_rows``, to the same end.
    Raises Redo when another transaction was faster; whatever the statements raise.
    Safe to re-run: yes; what was settled before is a replay.
    """
    settled = settled or Settled()
    rows = _usable(chunk, settled)
    firsts, rest = _first_of_each(rows)
    (settle_firsts or settle_rows)(transaction, work, settled, firsts)
    if rest:
        settle_rows(transaction, work, settled, rest)
    if settled.applied:
        effect(settled.applied)
    write_findings(transaction, work, settled.findings)
    return settled


def refuse_row(transaction: Transaction, work: Work, row: Row, *, status: str, error: str, attempts: int) -> Settled:
    """Settle one row as ``failed`` for good, or as ``pending`` with its attempts used up, in the open transaction.

    Raises Redo when the event turns out to be settled already.
    Safe to re-run: yes.
    """
    settled = Settled(rows=1, cents=row.amount_cents, refused=[(row, error)])
    locked = _lock(transaction, work, [row])
    if not locked:
        _insert(transaction, work, [(row, status, error)], attempts=attempts)
        settled.open_rows[status] += 1
        return settled
    pairs = [(row, locked[row.key].against(row))]
    if any(reason for _, _, reason in work.comparison.compare(transaction, work.job, pairs)):
        raise Redo
    _refuse(transaction, work, row, status=status, error=error, attempts=attempts)
    settled.replayed(row, status, own=work.owns(row, locked[row.key]))
    return settled


def _usable(chunk: Chunk, settled: Settled) -> list[Row]:
    rows = []
    for entry in chunk.entries:
        settled.rows += 1
        if isinstance(entry.row, Finding):
            settled.findings.append(entry.row)
        else:
            settled.cents += entry.row.amount_cents
            rows.append(entry.row)
    return rows


def _first_of_each(rows: Sequence[Row]) -> tuple[Sequence[Row], list[Row]]:
    """Part the rows that name an event for the first time, in key order, from those that name it again."""
    keys = [(row.source, row.event_id) for row in rows]
    if all(map(lt, keys, islice(keys, 1, None))):
        return rows, []
    firsts: dict[Key, Row] = {}
    rest = []
    for key, row in zip(keys, rows, strict=True):
        if firsts.setdefault(key, row) is not row:
            rest.append(row)
    return [firsts[key] for key in sorted(firsts)], rest


def settle_rows(
    transaction: Transaction, work: Work, settled: Settled, rows: Sequence[Row], claim_new: SettleFirsts | None = None
) -> int:
    """Settle rows in key order; where an event is new, it is named once among them. Return how many were stored before.

    ``claim_new`` may claim the new ones in another way than ``claim``, to the same end.
    Raises Redo when another transaction was faster. Safe to re-run: yes.
    """
    stored = classify(transaction, work.job, rows)
    new = [row for number, row in enumerate(rows) if number not in stored]
    known = [(row, stored[number]) for number, row in enumerate(rows) if number in stored]
    to_complete = []
    for row, event, reason in work.comparison.compare(transaction, work.job, _locked(transaction, work, known)):
        if reason is not None:
            settled.findings.append(conflict(row, reason))
        elif event.status == "pending" and (left := event.attempts_left(work.attempt_budget)):
            settled.tries(left)
            to_complete.append((row, work.comparison.as_stored(transaction, row, event), work.owns(row, event)))
        else:
            settled.replayed(row, event.status, own=work.owns(row, event))
    (claim_new or claim)(transaction, work, settled, new)
    _complete(transaction, work, settled, to_complete)
    return len(known)


def classify(transaction: Transaction, job: str, rows: Sequence[Row]) -> dict[int, Stored]:
    """Look up which of these rows name a stored event, by their number. Safe to re-run: it only reads."""
    found = transaction.rows(
        "classify_events",
        job=job,
        sources=text_array([row.source for row in rows]),
        event_ids=text_array([row.event_id for row in rows]),
        amounts=bigint_array([row.amount_cents for row in rows]),
        payloads=text_array([row.payload for row in rows]),
    )
    return {
        number - 1: Stored(status=status, run_id=run_id, line=line, same=bool(same_amount and same_text))
        for number, status, same_amount, same_text, run_id, line in found
    }


def _locked(transaction: Transaction, work: Work, known: Sequence[tuple[Row, Stored]]) -> list[tuple[Row, Stored]]:
    """Lock the events that are not final, and replace what was seen of them by what they are under the lock."""
    wanted = [row for row, event in known if event.status in ("pending", "failed")]
    if not wanted:
        return list(known)
    locked = _lock(transaction, work, wanted)
    return [
        (row, locked[row.key].against(row) if event.status in ("pending", "failed") else event) for row, event in known
    ]


def _lock(transaction: Transaction, work: Work, rows: Sequence[Row]) -> dict[Key, Stored]:
    keys = sorted({row.key for row in rows})
    found = transaction.rows(
        "lock_events", job=work.job, sources=[key[0] for key in keys], event_ids=[key[1] for key in keys]
    )
    return {
        (source, event_id): Stored(
            status=status,
            run_id=run_id,
            line=line,
            amount_cents=amount,
            payload=payload,
            attempts=attempts,
            granted=granted,
        )
        for source, event_id, status, amount, payload, attempts, run_id, line, _error, granted in found
    }


def claim(transaction: Transaction, work: Work, settled: Settled, new: Sequence[Row]) -> None:
    """Insert new events with their effects; an amount below zero is refused for good, unless it is history.

    Raises Redo when one of them is stored. Safe to re-run: yes.
    """
    if not new:
        return
    settled.tries(work.attempt_budget)
    judged = [(row, *judge(row, work.adopt)) for row in new]
    _insert(transaction, work, judged, attempts=1)
    settled.applied.extend(row for row, status, _ in judged if status == "completed")
    refused = [(row, error) for row, status, error in judged if status == "failed" and error]
    settled.refused.extend(refused)
    settled.open_rows["failed"] += len(refused)


def judge(row: Row, adopt: bool) -> tuple[str, str | None]:
    """Say what becomes of an event that is to be applied: its status, and the reason if it is refused for good."""
    if row.amount_cents >= 0 or adopt:
        return "completed", None
    return "failed", (
        f"the amount {row.amount_cents} cents is below zero; an effect cannot be. If it is wrong, amend the event, the "
        f"amount written as in the input: pgonce events amend {row.event_id} --job JOB --amount N --why TEXT"
    )


def _insert(
    transaction: Transaction, work: Work, judged: Sequence[tuple[Row, str, str | None]], *, attempts: int
) -> None:
    found = transaction.row(
        "insert_events",
        job=work.job,
        run_id=work.run_id,
        epoch=work.epoch,
        attempts=attempts,
        adopted=work.adopt,
        sources=text_array([row.source for row, _, _ in judged]),
        event_ids=text_array([row.event_id for row, _, _ in judged]),
        amounts=bigint_array([row.amount_cents for row, _, _ in judged]),
        payloads=text_array([row.payload for row, _, _ in judged]),
        lines=bigint_array([row.line for row, _, _ in judged]),
        statuses=text_array([status for _, status, _ in judged]),
        errors=text_array([error for _, _, error in judged]),
    )
    if found is None or found[0] != len(judged):
        # Who was faster has committed, or this insert would not have ended: its rows are there for the next statement.
        require_all("event", missing=len(judged) - len(_lock(transaction, work, [row for row, _, _ in judged])))
        raise Redo
    require_all("effect", missing=found[1])


def require_all(table: str, *, missing: int) -> None:
    """Raise InvariantBroken if rows were not stored that nothing of pgonce's keeps out."""
    if missing:
        raise InvariantBroken(
            f"{missing} rows were not stored in {table}: a trigger, a rule or a policy that is not pgonce's keeps them "
            "out. Nothing of the chunk was committed. Take it away (pgonce db doctor names what is not as it was made) "
            "and run again"
        )


def _complete(transaction: Transaction, work: Work, settled: Settled, due: Sequence[tuple[Row, Row, bool]]) -> None:
    """Complete pending events locked by this transaction: row as handed in, row as stored, whether its own."""
    completed = []
    for given, row, own in due:
        status, error = judge(row, work.adopt)
        if error is None:
            completed.append((given, row))
            continue
        settled.refused.append((given, error))
        settled.replayed(given, status, own=own)
        _refuse(transaction, work, row, status=status, error=error, attempts=1)
    for start in range(0, len(completed), COMPLETED_AT_A_TIME):
        part = completed[start : start + COMPLETED_AT_A_TIME]
        found = transaction.row(
            "complete_events",
            job=work.job,
            run_id=work.run_id,
            epoch=work.epoch,
            who=work.who,
            attempts=1,
            adopted=work.adopt,
            sources=[row.source for _, row in part],
            event_ids=[row.event_id for _, row in part],
        )
        if found is None or found[0] != len(part):
            raise Redo
        require_all("effect", missing=found[1])
        require_all("event_history", missing=found[2])
    for given, row in completed:
        settled.late += Tally(1, given.amount_cents)
        settled.applied.append(row)


def _refuse(transaction: Transaction, work: Work, row: Row, *, status: str, error: str, attempts: int) -> None:
    if not transaction.row(
        "refuse_event",
        job=work.job,
        source=row.source,
        event_id=row.event_id,
        status=status,
        attempts=attempts,
        error=error,
    ):
        raise Redo


def write_findings(transaction: Transaction, work: Work, findings: Sequence[Finding]) -> None:
    """Keep findings in the open transaction. Safe to re-run: a finding that stands stays as it was."""
    if not findings:
        return
    transaction.rows(
        "insert_findings",
        run_id=work.run_id,
        epoch=work.epoch,
        lines=[finding.line for finding in findings],
        kinds=[finding.kind for finding in findings],
        sources=[finding.source for finding in findings],
        event_ids=[finding.event_id for finding in findings],
        amounts=[finding.amount_cents for finding in findings],
        reasons=[finding.reason for finding in findings],
        raws=[finding.raw for finding in findings],
    )
