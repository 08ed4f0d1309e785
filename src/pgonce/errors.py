"""Every exception that pgonce raises, grouped by what the caller can do about it.

::

    PgonceError
     +-- Retryable              nothing was applied; the same call may be made again
     |    +-- Unreachable       no connection could be made within the limit
     |    +-- InputChanged      the input changed under the reader
     |    +-- Interrupted       the run was asked to stop, and did so between two chunks
     +-- Permanent              making the same call again will not help
     |    +-- IdentityConflict  the same id came with another payload (SQLSTATE 22000)
     |    +-- EventNotFound     no event of this id is stored
     |    +-- RowRefused        a row of the input cannot be used
     |    +-- InputUnreadable   the input cannot be read on from here
     |    +-- EffectFailed      the user's SQL is wrong, or its check returned rows
     |    +-- StopRequested     the run was told to stop at a bad row, and met one
     +-- LeaseLost              another start owns the run now; this one rolled back
     +-- RunOwned               the run belongs to a live start; it was not taken over
     +-- OutcomeUnknown         COMMIT was sent and its outcome could not be established
     +-- ConfigurationError     options, environment or input header do not fit together
     |    +-- DefinitionChanged the job is stored with another definition
     |    +-- ContentTaken      this content was already taken under another identity
     +-- SchemaMismatch         the database's schema is not the one this code needs
     +-- Inconclusive           a check could not be made: what it waits for was not seen
     +-- InvariantBroken        pgonce found its own promise broken; a bug, or foreign writes

Each carries ``retryable`` (the same call may succeed later as it is), ``maybe_committed`` (the
transaction may have been committed although the call failed), and where they are known ``sqlstate``, ``attempt`` (how
many were made) and ``command``, which finds out what became of it. What the driver raised is its ``__cause__``.
"""

from __future__ import annotations


class PgonceError(Exception):
    """Something pgonce cannot go on with; the message says what happened, to what, and what to do next."""

    retryable = False
    maybe_committed = False

    def __init__(
        self,
        message: str,
        *,
        job: str | None = None,
        event_id: str | None = None,
        sqlstate: str | None = None,
        attempt: int | None = None,
        command: str | None = None,
    ) -> None:
        super().__init__(message)
        self.job = job
        self.event_id = event_id
        self.sqlstate = sqlstate
        self.attempt = attempt
        self.command = command

    def __str__(self) -> str:
        """Return the message, with the command that finds out more, if there is one."""
        message = super().__str__()
        return message if self.command is None else f"{message} What became of it: {self.command}"


class Retryable(PgonceError):
    """Nothing was applied by this call. Make the same call again."""

    retryable = True


class Unreachable(Retryable):
    """No connection to the database could be made within the limit. Check the address, then run again."""


class InputChanged(Retryable):
    """The input changed while it was read, or differs from what was already taken. Run again on the input as it is."""


class Interrupted(Retryable):
    """The run was asked to stop and did, with the chunk in hand committed or rolled back. Run again to go on."""


class Permanent(PgonceError):
    """Making the same call again will not help before the data or the code is changed."""


class IdentityConflict(Permanent):
    """The same event id came with another payload. Find out which is right; give the other one an id of its own."""


class EventNotFound(Permanent):
    """No event of this id is stored under this job and source. Write the id as it is stored, or name its source."""


class RowRefused(Permanent):
    """A row of the input has no usable identity or value. Correct the row and hand it in again."""


class InputUnreadable(Permanent):
    """The input cannot be read on from the line named. Repair the file and run again."""


class EffectFailed(Permanent):
    """The effect's SQL failed for a reason that is not in the rows, or its check returned rows. Correct the SQL."""


class StopRequested(Permanent):
    """The run met a bad row and was told to stop there. Correct the row, or run with ``--on-error quarantine``."""


class LeaseLost(PgonceError):
    """Another start took this run over. Nothing of its last chunk was applied; there is nothing to undo."""

    retryable = True


class RunOwned(PgonceError):
    """The run belongs to a start that is still alive. Wait for it, or take it over on purpose."""

    retryable = True


class OutcomeUnknown(PgonceError):
    """COMMIT was sent and its outcome could not be established in time. Run again: the stored position decides."""

    retryable = True
    maybe_committed = True


class ConfigurationError(PgonceError):
    """Options, environment or header do not fit together. Nothing was read or written."""


class DefinitionChanged(ConfigurationError):
    """The job is stored with another definition. Use that one, or change it on record with ``pgonce job change``."""


class ContentTaken(ConfigurationError):
    """This content was already taken under another job, source or definition. Say ``--also`` if that is meant."""


class SchemaMismatch(PgonceError):
    """The database's schema is missing, older or newer than this code. Run ``pgonce db migrate`` or update pgonce."""


class Inconclusive(PgonceError):
    """A check could not be made, so it says neither yes nor no. Look at what is named, then run it again."""

    retryable = True


class InvariantBroken(PgonceError):
    """A promise of pgonce does not hold in the database. Stop and look: ``pgonce reconcile`` shows the rows."""
