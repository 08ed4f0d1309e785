"""Count a run or a start from committed rows."""

from __future__ import annotations

from pgonce.db.transaction import Transaction
from pgonce.model.outcome import Counts

# How the name of a database begins that cannot be told from others.
UNIDENTIFIED = "unknown/"


def count_run(transaction: Transaction, job: str, run_id: int) -> Counts:
    """Count the rows of a run by their result, as it stands now. Safe to re-run: it only reads."""
    return count_start_and_run(transaction, job, run_id, None)[1]


def count_start_and_run(transaction: Transaction, job: str, run_id: int, epoch: int | None) -> tuple[Counts, Counts]:
    """Count what one start of a run did, and the rows of the run, at one moment. Safe to re-run: it only reads."""
    rows: dict[str, list[tuple[str, int, int]]] = {"start": [], "run": []}
    for scope, *counted in transaction.rows("count_run", job=job, run_id=run_id, epoch=epoch):
        rows[scope].append(tuple(counted))
    return Counts.from_rows(rows["start"]), Counts.from_rows(rows["run"])


def replayed_open(transaction: Transaction, run_id: int) -> int:
    """Count the rows of a run that named an event of another row which was not completed: their answer may change."""
    found = transaction.row("replayed_open", run_id=run_id)
    return int(found[0]) if found else 0


def count_used_up(transaction: Transaction, job: str) -> int:
    """Count the pending events of a job that no start tries any more without a grant. Safe to re-run: it only reads."""
    found = transaction.row("used_up_events", job=job)
    return int(found[1]) if found else 0


def cluster_identity(transaction: Transaction) -> str:
    """Name the database as it is now: another one, a restored one or a new primary answers otherwise.

    Where the role may not ask, the name is a new one every time: then nothing is ever recognised as the same.
    """
    may = transaction.row("may_identify")
    assert may is not None
    if not may[0]:
        return f"{UNIDENTIFIED}{may[1]}"
    found = transaction.row("cluster_identity")
    assert found is not None
    return str(found[0])
