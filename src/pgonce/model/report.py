"""What a run tells when it returns: counts from committed rows, and the exit code that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgonce.model.outcome import Counts

COMPLETE, FAILED_FOR_GOOD, SAFE_TO_RUN_AGAIN = 0, 1, 75


def exit_code_of(counts: Counts) -> int:
    """Derive the exit code of a run whose input is settled to the end: pending rows, then rows that failed for good."""
    if counts.pending.rows:
        return SAFE_TO_RUN_AGAIN
    if counts.failed.rows or counts.conflict.rows or counts.rejected.rows:
        return FAILED_FOR_GOOD
    return COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run after a start of it.

    ``start`` counts what this start did, ``run`` the whole run as it stands in the database; both in rows and cents.
    ``shortcut`` says that the input was recognised as finished and not read again. ``used_up`` is how many pending
    events of the job have used up their attempts over all starts and need a grant; it is only counted where rows of the
    run are pending. ``exit_code`` is 0, 1 or 75.
    """

    job: str
    run_id: int
    epoch: int
    kind: str
    input_name: str
    source: str
    database: str
    checkpoint: str
    shortcut: bool
    start: Counts
    run: Counts
    notes: tuple[str, ...] = field(default=())
    exit_code: int = COMPLETE
    used_up: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return plain values for a JSON document, with stable keys."""
        return {
            "version": 1,
            "job": self.job,
            "run": self.run_id,
            "start": self.epoch,
            "kind": self.kind,
            "input": self.input_name,
            "source": self.source,
            "database": self.database,
            "checkpoint": self.checkpoint,
            "shortcut": self.shortcut,
            "this_start": self.start.as_dict(),
            "whole_run": self.run.as_dict(),
            "notes": list(self.notes),
            "exit_code": self.exit_code,
            "used_up": self.used_up,
        }
