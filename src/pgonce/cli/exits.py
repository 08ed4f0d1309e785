"""Exit codes: what the command's end tells a scheduler."""

from __future__ import annotations

from pgonce import errors

COMPLETE = 0
FAILED_FOR_GOOD = 1
USAGE = 2
CHECK_FOUND_SOMETHING = 3
UNREACHABLE = 69
INCONCLUSIVE = 70
SAFE_TO_RUN_AGAIN = 75
OWNED_BY_ANOTHER = 76
OUTCOME_UNKNOWN = 77
CONFIGURATION = 78
INTERRUPTED = 130
TERMINATED = 143

# In this order: the first class that an exception belongs to names the exit code.
_BY_CLASS: tuple[tuple[type[errors.PgonceError], int], ...] = (
    (errors.ConfigurationError, CONFIGURATION),
    (errors.SchemaMismatch, CONFIGURATION),
    (errors.Unreachable, UNREACHABLE),
    (errors.OutcomeUnknown, OUTCOME_UNKNOWN),
    (errors.RunOwned, OWNED_BY_ANOTHER),
    (errors.LeaseLost, OWNED_BY_ANOTHER),
    (errors.Interrupted, INTERRUPTED),
    (errors.Retryable, SAFE_TO_RUN_AGAIN),
    (errors.EventNotFound, CHECK_FOUND_SOMETHING),
    (errors.Permanent, FAILED_FOR_GOOD),
    (errors.InvariantBroken, INCONCLUSIVE),
    (errors.Inconclusive, INCONCLUSIVE),
)


def exit_code_of(error: errors.PgonceError) -> int:
    """Return the exit code that tells what an exception means for running again."""
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), FAILED_FOR_GOOD)
