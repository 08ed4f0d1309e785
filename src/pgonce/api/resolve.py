"""``pgonce resolve``: what became of a COMMIT whose answer was lost."""

from __future__ import annotations

from typing import Any

from pgonce.api.database import opened
from pgonce.engine.bookkeeping import BOOKKEEPING_S
from pgonce.engine.resolve import Question, Resolved
from pgonce.engine.resolve import resolve as resolve_runs


def resolve(
    run_id: int | None = None,
    *,
    epoch: int | None = None,
    chunk: int | None = None,
    deadline_s: float = BOOKKEEPING_S,
    **where: Any,
) -> list[Resolved]:
    """Say of a run, or of each whose newest start has not ended, up to where it is settled; under its rows' locks.

    ``epoch`` and ``chunk`` name the start and its chunk whose COMMIT is in doubt, as the exception did; ``deadline_s``
    is in seconds. Raises ConfigurationError, EventNotFound (no such run), Unreachable, OutcomeUnknown.
    Safe to re-run: it only reads.
    """
    question = Question(run_id=run_id, epoch=epoch, chunk=chunk, deadline_s=deadline_s)
    with opened(**{"application": "pgonce/resolve", "prepare": False, **where}) as clerk:
        return resolve_runs(clerk, question)
