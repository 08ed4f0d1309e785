"""What the scenarios share: books with events and one running total, the worker that does it right, and a gate.

The total is updated by ``balance + amount``, the effect that hurts most when it runs twice. Right and wrong workers
write the very same effect; only what they ask before it, and what they commit with it, differs.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pgonce.errors import Inconclusive
from pgonce.lab.stage import END_S_MAX, Connection, Stage

GATE = 41
"""The number of the advisory lock at which a COMMIT can be held."""

AT_THE_GATE = """select count(*) from pg_stat_activity
where application_name = %s and query = 'commit' and wait_event = 'advisory'"""
"""One, if an actor's backend is inside COMMIT and held there."""

TABLES = """
drop table if exists event, account cascade;
create table account (name text primary key, balance bigint not null);
create table event (event_id text primary key, amount bigint not null, status text not null default 'pending');
create or replace function wait_at_the_gate() returns trigger language plpgsql as
    $$ begin perform pg_advisory_xact_lock_shared(41); return null; end $$;
"""

LOCK = "select amount, status from event where event_id = %s for update"
LOOK = "select amount, status from event where event_id = %s"
ADD = "update account set balance = balance + %s where name = 'shop'"
MARK = "update event set status = 'completed' where event_id = %s"


def open_books(stage: Stage, events: Mapping[str, int], accounts: Mapping[str, int] | None = None) -> None:
    """Make fresh tables with these pending events, and accounts with these balances (by default one empty ``shop``)."""
    stage.sql(TABLES)
    for name, balance in (accounts or {"shop": 0}).items():
        stage.sql("insert into account (name, balance) values (%s, %s)", name, balance)
    for event_id, amount in events.items():
        stage.sql("insert into event (event_id, amount) values (%s, %s)", event_id, amount)


def total(stage: Stage) -> int:
    """Return the cents in all accounts."""
    return int(stage.value("select sum(balance) from account"))


def apply_once(stage: Stage, actor: str, connection: Connection, event_id: str) -> str:
    """Do it right: lock the event, look at it, and commit effect and ``completed`` together."""
    [(amount, status)] = stage.execute(actor, connection, LOCK, event_id)
    if status == "completed":
        stage.commit(actor, connection)
        return "already"
    return add_and_mark(stage, actor, connection, event_id, amount)


def add_and_mark(stage: Stage, actor: str, connection: Connection, event_id: str, amount: int) -> str:
    """Write effect and ``completed`` and commit; return ``applied`` if COMMIT says so.

    It asks nothing: right workers have asked before, under the lock, and wrong ones believe something else.
    """
    stage.execute(actor, connection, ADD, amount)
    stage.execute(actor, connection, MARK, event_id)
    return committed_as("applied", stage.commit(actor, connection))


def committed_as(word: str, tag: str) -> str:
    """Return the word for what was committed, or what COMMIT answered instead, which raises no error."""
    return word if tag == "COMMIT" else f"answered_{tag}"


@contextmanager
def gate_in_commit(stage: Stage, table: str, when: str) -> Iterator[None]:
    """Hold every COMMIT that wrote to the table at a gate, until the block ends."""
    stage.sql(
        f"create constraint trigger gate after {when} on {table} deferrable initially deferred"
        " for each row execute function wait_at_the_gate()"
    )
    keeper = stage.connect("gate")
    keeper.execute("select pg_advisory_lock(%s)", (GATE,))
    keeper.commit()
    try:
        yield
    finally:
        stage.say("gate", "opens")
        keeper.close()
        stage.sql(f"drop trigger if exists gate on {table}")


def die_in_commit(stage: Stage, actor: str, text: str) -> str:
    """Let a psql process run statements and then a COMMIT that stands at the gate, and SIGKILL it there.

    Return where it died. Raises Inconclusive if it ended otherwise, or if its COMMIT went on before it was dead.
    """
    process = stage.psql(actor, text, "commit")
    stage.wait_for(lambda: stage.value(AT_THE_GATE, f"lab-{actor}") == 1, f"{actor} inside COMMIT")
    process.send_signal(signal.SIGKILL)
    ended = process.wait(END_S_MAX)
    if ended != -signal.SIGKILL or stage.value(AT_THE_GATE, f"lab-{actor}") != 1:
        raise Inconclusive(
            f"{actor} was not killed with SIGKILL inside its COMMIT (exit {ended}), so this scenario shows nothing. "
            "Run it again."
        )
    stage.say(actor, "killed with SIGKILL inside COMMIT; its backend goes on")
    return "inside_commit"


def wait_until_ended(stage: Stage, actor: str) -> None:
    """Wait until the backend of an actor has ended."""
    there = "select count(*) from pg_stat_activity where application_name = %s"
    stage.wait_for(lambda: stage.value(there, f"lab-{actor}") == 0, f"the backend of {actor} ended")
