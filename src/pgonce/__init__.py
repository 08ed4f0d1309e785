"""Batch jobs on PostgreSQL that are safe to run again after a failure half-way."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgonce.api.once import Once as Once
    from pgonce.api.once import connect as connect
    from pgonce.api.run import run as run
    from pgonce.db.guarded import GuardedConnection as GuardedConnection
    from pgonce.errors import *  # noqa: F403
    from pgonce.model.backoff import Backoff as Backoff
    from pgonce.model.limits import Limits as Limits
    from pgonce.model.observer import Observer as Observer
    from pgonce.model.observer import Step as Step
    from pgonce.model.outcome import Counts as Counts
    from pgonce.model.outcome import Tally as Tally
    from pgonce.model.report import RunReport as RunReport
    from pgonce.sources.options import ReadingOptions as ReadingOptions

__version__ = "0.1.0.dev0"

_ERRORS = [
    "ConfigurationError",
    "ContentTaken",
    "DefinitionChanged",
    "EffectFailed",
    "EventNotFound",
    "IdentityConflict",
    "InputChanged",
    "InputUnreadable",
    "Interrupted",
    "InvariantBroken",
    "LeaseLost",
    "OutcomeUnknown",
    "Permanent",
    "PgonceError",
    "Retryable",
    "RowRefused",
    "RunOwned",
    "SchemaMismatch",
    "StopRequested",
    "Unreachable",
]

# Where each public name lives. It is imported when it is first used, so that a process that needs one room of pgonce
# (the watcher of the embedded server, say) does not load them all.
_HOMES = dict.fromkeys(_ERRORS, "pgonce.errors") | {
    "Backoff": "pgonce.model.backoff",
    "Counts": "pgonce.model.outcome",
    "GuardedConnection": "pgonce.db.guarded",
    "Limits": "pgonce.model.limits",
    "Once": "pgonce.api.once",
    "Observer": "pgonce.model.observer",
    "ReadingOptions": "pgonce.sources.options",
    "RunReport": "pgonce.model.report",
    "Step": "pgonce.model.observer",
    "Tally": "pgonce.model.outcome",
    "connect": "pgonce.api.once",
    "run": "pgonce.api.run",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
