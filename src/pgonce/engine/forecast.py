"""What a run would make of each row, by the rules it would use, without writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pgonce.db.transaction import Transaction
from pgonce.engine.apply import classify, judge
from pgonce.engine.bookkeeping import Clerk, read_only
from pgonce.engine.compare import Comparison, FirstRow, Stored
from pgonce.engine.seen import Seen, SeenEvent
from pgonce.model.chunk import Chunk
from pgonce.model.outcome import RESULTS, Counts, Tally
from pgonce.model.row import Finding, Key, Row


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that a person would have to look at: its line, its result, and the reason in words."""

    line: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A stored event beside a row: what a run would find, and why the row disagrees with it (None: it does not)."""

    event: Stored
    reason: str | None
    counted_cents: int = 0
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Forecast:
    """Walks over the rows of an input in order and counts what a start would make of each.

    ``allowed`` bad rows do not stop the run (None: any number), of which ``bad`` are there before it begins.
    """

    clerk: Clerk
    job: str
    run_id: int | None
    adopt: bool
    attempt_budget: int
    comparison: Comparison
    input_name: str
    seen: Seen
    findings_max: int
    allowed: int | None
    bad: int
    stops_at: int | None = None
    findings: list[BadRow] = field(default_factory=list)
    findings_left_out: int = 0
    _sums: dict[str, Tally] = field(default_factory=lambda: dict.fromkeys(("read", "late", *RESULTS), Tally()))
    _moved: dict[str, Tally] = field(default_factory=lambda: dict.fromkeys(RESULTS, Tally()))

    def take(self, chunk: Chunk) -> None:
        """Count the rows of the next chunk. Safe to re-run: not for the same chunk; nothing is written."""
        rows = [entry.row for entry in chunk.entries if isinstance(entry.row, Row)]
        known = self.clerk.do(lambda transaction: self._look(read_only(transaction), rows), commit=False)
        for entry in chunk.entries:
            row = entry.row
            self._add("read", Tally(1, row.amount_cents or 0))
            if isinstance(row, Finding):
                self._bad_row("rejected", row.line, row.reason, Tally(1, row.amount_cents or 0))
            elif row.line in known:
                self._known(row, known[row.line])
            else:
                self._unknown(row)

    @property
    def start(self) -> Counts:
        """What the start would report of itself."""
        counted = {name: self._sums[name] for name in ("read", *RESULTS)}
        counted["adopted" if self.adopt else "applied"] += self._sums["late"]
        return Counts(**counted)

    def whole(self, before: Counts, *, replay: bool) -> Counts:
        """What the whole run would come to after what is stored of it already."""
        own = {name: Tally() if replay else self._sums[name] for name in ("read", *RESULTS)}
        if not replay:
            own["already"] += self._sums["late"]
        moved = {"read": Tally(), **self._moved}
        return Counts(**{name: getattr(before, name) + own[name] + moved[name] for name in own})

    def _look(self, transaction: Transaction, rows: Sequence[Row]) -> dict[int, _Known]:
        stored = classify(transaction, self.job, rows)
        pairs = [(rows[number], event) for number, event in sorted(stored.items())]
        open_keys = sorted({row.key for row, event in pairs if event.status in ("pending", "failed")})
        details: dict[Key, tuple[int, int, int, int, str | None]] = {}
        if open_keys:
            found = transaction.rows(
                "peek_events",
                job=self.job,
                sources=[source for source, _ in open_keys],
                event_ids=[event_id for _, event_id in open_keys],
            )
            details = {(found_row[0], found_row[1]): found_row[2:] for found_row in found}
        known = {}
        for row, event, reason in self.comparison.compare(transaction, self.job, pairs):
            unknown = (0, 0, row.amount_cents, row.amount_cents, None)
            attempts, granted, amount, counted, error = details.get(row.key, unknown)
            whole = replace(event, attempts=attempts, granted=granted, amount_cents=amount)
            known[row.line] = _Known(event=whole, reason=reason, counted_cents=counted, error=error)
        return known

    def _known(self, row: Row, known: _Known) -> None:
        """Count a row whose event is stored: a conflict, a pending event to be applied now, or a replay."""
        event, one = known.event, Tally(1, row.amount_cents)
        if known.reason is not None:
            self._bad_row("conflict", row.line, known.reason, one)
            return
        changed = self.seen.get(row.key)
        status = changed.status if changed else event.status
        if changed is None and status == "pending" and event.attempts_left(self.attempt_budget):
            self._complete(row, known)
        else:
            self._replay(status, row, known.error)

    def _complete(self, row: Row, known: _Known) -> None:
        status, error = judge(replace(row, amount_cents=known.event.amount_cents), self.adopt)
        self.seen.put(row.key, SeenEvent(status, None))
        if known.event.run_id == self.run_id:
            cents = known.counted_cents
            to = "failed" if error else "adopted" if self.adopt else "applied"
            self._moved["pending"] += Tally(-1, -cents)
            self._moved[to] += Tally(1, cents)
        if error:
            self._bad_row("failed", row.line, error, Tally(1, row.amount_cents))
        else:
            self._add("late", Tally(1, row.amount_cents))

    def _unknown(self, row: Row) -> None:
        """Count a row whose event is not stored: a new event, or one that a row before it brings."""
        before = self.seen.get(row.key)
        one = Tally(1, row.amount_cents)
        if before is not None:
            reason = self.comparison.within(row, before.first, self.input_name) if before.first else None
            if reason is not None:
                self._bad_row("conflict", row.line, reason, one)
            else:
                self._replay(before.status, row)
            return
        status, error = judge(row, self.adopt)
        self.seen.put(row.key, SeenEvent(status, FirstRow(row.line, row.amount_cents, row.payload)))
        if error:
            self._bad_row("failed", row.line, error, one)
        else:
            self._add("adopted" if self.adopt else "applied", one)

    def _replay(self, status: str, row: Row, error: str | None = None) -> None:
        result = status if status in ("failed", "pending") else "already"
        self._add(result, Tally(1, row.amount_cents))
        if result != "already":
            self._remember(result, row.line, error or f"event {row.event_id!r} is {result} already")

    def _bad_row(self, kind: str, line: int, reason: str, one: Tally) -> None:
        if self.stops_at is None and self.allowed is not None and self.bad >= self.allowed:
            self.stops_at = line
        self.bad += 1
        self._add(kind, one)
        self._remember(kind, line, reason)

    def _remember(self, kind: str, line: int, reason: str) -> None:
        if len(self.findings) < self.findings_max:
            self.findings.append(BadRow(line, kind, reason))
        else:
            self.findings_left_out += 1

    def _add(self, name: str, one: Tally) -> None:
        self._sums[name] += one
