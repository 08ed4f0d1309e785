"""The opening statement of a transaction: how long anything in it may last, and whether it may write here at all."""

from __future__ import annotations

import math

from pgonce.db import failure
from pgonce.db.transaction import Transaction
from pgonce.errors import ConfigurationError
from pgonce.model.deadline import Deadline

# How often the server looks whether a client in a statement is still there: a killed job lets go of its rows at once.
CLIENT_CHECK_MS = 200

# A transaction is never given less than this, so that one begun close to its deadline fails by its own statements.
SHORTEST_TIMEOUT_MS = 100

# The server's timeouts are 32-bit milliseconds; a longer deadline is as good as none.
LONGEST_TIMEOUT_MS = 2_000_000_000

# A wait for a lock ends this much before the statement that waits: the server then says which of the two it was.
LOCK_SLACK_MS = 50

# A statement that runs into the deadline is to fail by its own timeout, which keeps the connection; that of the whole
# transaction, which ends it, comes this much later.
TRANSACTION_SLACK_MS = 2_000


def bound(transaction: Transaction, deadline: Deadline, label: str) -> None:
    """Give the open transaction until the deadline, in the server. ``label`` names the database in messages.

    Raises DatabaseFailure on a standby, ConfigurationError where triggers do not fire; what the statement raises.
    Safe to re-run: yes; a later deadline takes the place of the one before.
    """
    left_ms = min(max(SHORTEST_TIMEOUT_MS, math.ceil(deadline.left_s() * 1000)), LONGEST_TIMEOUT_MS)
    found = transaction.row(
        "set_local",
        statement_ms=left_ms,
        lock_ms=left_ms - LOCK_SLACK_MS,
        transaction_ms=left_ms + TRANSACTION_SLACK_MS,
        check_ms=CLIENT_CHECK_MS,
    )
    if found is None:
        raise ConfigurationError("the server did not answer the opening statement of a transaction")
    in_recovery, replication_role, transaction.may_use_temp = found[:3]
    if in_recovery:
        raise failure.standby(label)
    if replication_role == "replica":
        raise ConfigurationError(
            f"session_replication_role is replica in the {label}: foreign keys and guards would not hold. Connect as a "
            "role without that setting."
        )
