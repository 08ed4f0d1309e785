"""How much a run takes at a time, how long it tries, and what it does with bad rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from pgonce.errors import ConfigurationError
from pgonce.model.backoff import Backoff
from pgonce.model.override import check_overrides

# About where a larger chunk stops paying on a local disk; small enough to be redone in a moment.
CHUNK_ROWS = 10_000
CHUNK_ROWS_MAX = 1_000_000

# A chunk holds its rows' locks until it commits; others that need them wait about this long.
CHUNK_SECONDS = 5.0

# Attempts of one chunk whose transaction began. More would only repeat what three have shown.
ATTEMPTS = 3

# The deadline of a chunk ends sooner in any case; more is a number that was meant for something else.
ATTEMPTS_MAX = 1_000

# Longest time for one chunk with all its attempts.
CHUNK_DEADLINE_S = 60.0

# A whole file in one transaction may take its time; a day bounds it.
WHOLE_DEADLINE_S = 86_400.0

# Events that one start may mark as failed by bisecting, or leave pending. A chunk costs about log2(rows) transactions
# for each, and when more than this fail, the fault is in the effect and not in the rows.
REFUSED_EVENTS_MAX = 1_000

# Each worker is a connection, and holds a chunk in memory. More than the server has processors wins nothing.
WORKERS_MAX = 32

CHECKPOINTS = ("item", "chunk", "all")
ON_ERROR = ("quarantine", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a run. ``on_error`` None: quarantine, but for a whole-file checkpoint stop with nothing applied.

    ``retry_on`` says how often more a chunk is tried for an error that is final otherwise: by SQLSTATE, or by
    constraint with its schema. ``backoff`` are the waits between tries; ``seed`` makes their jitter repeatable.
    ``workers`` is how many chunks are begun at a time, each on a connection of its own; the results are the same.
    """

    checkpoint: str = "chunk"
    chunk_rows: int = CHUNK_ROWS
    chunk_seconds: float = CHUNK_SECONDS
    attempts: int = ATTEMPTS
    chunk_deadline_s: float | None = None
    deadline_s: float | None = None
    on_error: str | None = None
    max_rejected: int | None = None
    retry_on: Mapping[str, int] = field(default_factory=dict)
    backoff: Backoff = field(default_factory=Backoff)
    seed: int | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        if self.checkpoint not in CHECKPOINTS:
            raise ConfigurationError(f"--checkpoint {self.checkpoint}: it is one of {', '.join(CHECKPOINTS)}")
        if self.on_error is not None and self.on_error not in ON_ERROR:
            raise ConfigurationError(f"--on-error {self.on_error}: it is one of {', '.join(ON_ERROR)}")
        if not 1 <= self.chunk_rows <= CHUNK_ROWS_MAX:
            raise ConfigurationError(f"--chunk-rows {self.chunk_rows}: it is from 1 to {CHUNK_ROWS_MAX}")
        if not (isinstance(self.attempts, int) and 1 <= self.attempts <= ATTEMPTS_MAX):
            raise ConfigurationError(f"--attempts {self.attempts}: it is a whole number from 1 to {ATTEMPTS_MAX}")
        if not (isinstance(self.workers, int) and 1 <= self.workers <= WORKERS_MAX):
            raise ConfigurationError(f"--workers {self.workers}: it is a whole number from 1 to {WORKERS_MAX}")
        if self.workers > 1 and self.checkpoint == "all":
            raise ConfigurationError("--workers is for many transactions; --checkpoint all is a single one")
        for name, seconds in (
            ("chunk-seconds", self.chunk_seconds),
            ("chunk-deadline", self.chunk_deadline_s),
            ("deadline", self.deadline_s),
        ):
            if seconds is not None and not 0 < seconds < inf:
                raise ConfigurationError(f"--{name} {seconds}: it has to be a number above zero")
        if self.max_rejected is not None and self.max_rejected < 0:
            raise ConfigurationError(f"--max-rejected {self.max_rejected}: it cannot be below zero")
        if self.seed is not None and not isinstance(self.seed, int):
            raise ConfigurationError(f"--seed {self.seed}: it is a whole number")
        check_overrides(self.retry_on)

    @property
    def rows(self) -> int:
        """Rows of one chunk."""
        return 1 if self.checkpoint == "item" else self.chunk_rows

    @property
    def transaction_s(self) -> float:
        """Seconds that one chunk may take with all its attempts."""
        if self.chunk_deadline_s is not None:
            return self.chunk_deadline_s
        return WHOLE_DEADLINE_S if self.checkpoint == "all" else CHUNK_DEADLINE_S

    @property
    def stops_at_bad_row(self) -> bool:
        """Say whether the first bad row ends the run."""
        return self.on_error == "stop" or (self.on_error is None and self.checkpoint == "all")
