"""The row report: a line of JSON for every row of an input, in input order, made from committed rows.

The input is read again in blocks and each row is looked up, so memory stays constant and nothing is remembered from
the run itself. Whatever starts and crashes it took, the same stored rows give the same bytes: no time and no start is
in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pgonce.db.transaction import Transaction
from pgonce.engine import job as jobs
from pgonce.engine.bookkeeping import Clerk, read_only
from pgonce.engine.compare import without_time
from pgonce.engine.reading import chunks
from pgonce.errors import Interrupted, InvariantBroken
from pgonce.model.chunk import Chunk
from pgonce.model.cursor import Cursor
from pgonce.model.row import Finding, Row, RowReader
from pgonce.sources import Input

# Rows that are looked up at once: enough to make the round trips cheap, few enough to hold their lines in memory.
BLOCK_ROWS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Which rows are to be reported: those of an input that a run of a job has settled to the end."""

    job: str
    run_id: int
    source: str


def report_lines(clerk: Clerk, source: Input, what: Reported, *, interrupted: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the report's lines, each with its line feed, a block of rows at a time.

    Keys of a line: ``line``, ``source``, ``event_id``, ``result``, ``amount_cents``, ``run`` (the run whose row stands
    on the event; null for a rejected row), and ``reason`` where there is one.
    Raises InvariantBroken when a row is not settled, Interrupted when asked to stop.
    Safe to re-run: it only reads, and yields the same bytes as long as the stored rows are the same.
    """
    stored = clerk.do(lambda transaction: jobs.find(read_only(transaction), what.job), commit=False)
    if stored is None:
        raise InvariantBroken(f"job {what.job!r} is not stored any more")
    reader = RowReader(stored.definition, what.source)
    for chunk in chunks(source, reader, Cursor.start(), lambda: BLOCK_ROWS):
        if interrupted():
            raise Interrupted("stopped as asked, while the row report was written. The run is complete; run again.")
        if chunk.entries:
            found = clerk.do(_looking_up(chunk, what), commit=False)
            lines = [_line(entry.row, row, what) for entry, row in zip(chunk.entries, found, strict=True)]
            yield b"".join(lines)


def _looking_up(chunk: Chunk, what: Reported) -> Callable[[Transaction], list[tuple[Any, ...]]]:
    rows = [entry.row for entry in chunk.entries]

    def body(transaction: Transaction) -> list[tuple[Any, ...]]:
        return read_only(transaction).rows(
            "report_rows",
            job=what.job,
            run_id=what.run_id,
            sources=[row.source for row in rows],
            event_ids=[row.event_id for row in rows],
            lines=[row.line for row in rows],
        )

    return body


def _line(row: Row | Finding, found: tuple[Any, ...], what: Reported) -> bytes:
    _number, status, adopted, run_id, line, error, kind, reason = found
    if kind is not None:
        result, why = kind, without_time(reason)
    elif status is None:
        raise InvariantBroken(
            f"line {row.line} of run {what.run_id} is settled, but neither its event nor a finding is stored: "
            "pgonce reconcile"
        )
    else:
        stands = run_id == what.run_id and line == row.line
        result, why = _result(status, adopted, stands=stands), error
    values: dict[str, object] = {
        "line": row.line,
        "source": row.source,
        "event_id": row.event_id,
        "result": result,
        "amount_cents": row.amount_cents,
        "run": run_id,
    }
    if why:
        values["reason"] = why
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _result(status: str, adopted: bool, *, stands: bool) -> str:
    """Name the result of a row by the state of its event; ``stands`` says that the event is this row's own."""
    if status in ("pending", "failed"):
        return status
    if not stands:
        return "already"
    return "adopted" if adopted else "applied"
