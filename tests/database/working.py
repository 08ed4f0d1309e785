"""What is seen of workers from outside while they work on an input: their transactions, their threads."""

from __future__ import annotations

import threading

from database.jobs import Desk, until

# So long that what waits too long for its turn is not let go within a test: it has to be seen that it holds others up.
PATIENT_S = 1000.0


def writing(desk: Desk) -> int:
    """Count the transactions that have written something."""
    found = desk.one(
        "select count(*) from pg_stat_activity where datname = current_database() and backend_xid is not null"
    )
    return int(found)


def waiting_in_turn(desk: Desk, count: int) -> None:
    """Wait until so many transactions are held open between two statements."""
    until(
        lambda: (
            desk.one(
                """select count(*) from pg_stat_activity
                where datname = current_database() and state = 'idle in transaction'"""
            )
            >= count
        ),
        f"{count} transactions that wait for their turn",
    )


def no_worker_is_left(desk: Desk) -> None:
    """Nothing that the workers began goes on: no thread, no transaction."""
    assert [thread.name for thread in threading.enumerate() if thread.name == "pgonce-worker"] == []
    until(
        lambda: (
            desk.one(
                """select count(*) from pg_stat_activity where datname = current_database()
                and backend_type = 'client backend' and xact_start is not null and pid <> pg_backend_pid()"""
            )
            == 0
        ),
        "the end of every transaction",
    )


def role_of_few(desk: Desk) -> str:
    """Make a role that may run jobs and may have two connections; the test drops it."""
    role = f"few_{desk.one('select current_database()')[-12:]}"
    desk.sql(f"create role {role} login connection limit 2; grant all on schema pgonce to {role}")
    desk.sql(f"grant all on all tables in schema pgonce to {role}")
    desk.sql(f"grant all on all sequences in schema pgonce to {role}")
    return role
