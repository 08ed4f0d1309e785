"""The experiment that pgonce grew from: one event, three faults, a bounded retry, and a race of two psql processes.

Its six lines have fixed words. Each is printed only after everything that it says was checked; otherwise
InvariantBroken is raised. The 40001 is raised by the server, but on request, and the lost answer is played by the
client: the scenarios after this one have the real ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.resources import files

import psycopg

from pgonce.errors import InvariantBroken
from pgonce.lab.scenario import Line, Scenario, verbatim
from pgonce.lab.stage import END_S_MAX, Connection, Stage
from pgonce.model.backoff import Backoff

ATTEMPTS = 3
HOLD_S = 3.0
"""How long the first worker of the race keeps its lock, so that the second one can be seen waiting."""
EVENT, AMOUNT, REFUSED_EVENT = 1, 100, 2
BACKOFF = Backoff()


class AnswerLost(Exception):
    """The client was told nothing after COMMIT."""


class RetriesUsedUp(Exception):
    """Every attempt failed for a reason that allows another one."""


def play(stage: Stage) -> Iterator[Line]:
    """Play the whole experiment and yield its six lines."""
    stage.sql("create schema wiki_lab")
    stage.sql(files("pgonce.lab").joinpath("apply_event.sql").read_text("utf-8"))
    connection = stage.connect("worker")
    for fault in ("before_write", "after_write", "after_commit"):
        _one_fault(stage, connection, fault)
        yield verbatim(f"{fault}: attempts=2 replay=already effect_count=1")
    _limits(stage, connection)
    yield verbatim(f"exhausted={ATTEMPTS} pending|0 permanent_failed=yes payload_conflict=22000")
    for _ in range(2):
        _race(stage)
        yield verbatim(f"race: blocked_B_by_A=observed applied/already effect_count=1 sum={AMOUNT}")


def apply_event(connection: Connection, event: int, amount: int, fault: str = "none") -> str:
    """Apply an event in a transaction of its own; after COMMIT, ``after_commit`` loses the answer."""
    in_server = "none" if fault == "after_commit" else fault
    with connection.transaction():
        row = connection.execute("select wiki_lab.apply_event(%s, %s, %s, 0)", (event, amount, in_server)).fetchone()
    if fault == "after_commit":
        raise AnswerLost
    assert row is not None
    return str(row[0])


def apply_with_retry(stage: Stage, connection: Connection, fault: str, *, times: int) -> tuple[str, int]:
    """Apply the event, the first ``times`` attempts with a fault; return the answer and the number of attempts.

    Only 40001 and a lost answer are tried again: the first is certainly not applied, the second is looked up by the
    function itself, which asks before it writes.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            answer = apply_event(connection, EVENT, AMOUNT, fault if attempt <= times else "none")
            stage.say("worker", f"attempt {attempt}: {answer}")
            return answer, attempt
        except psycopg.errors.SerializationFailure as error:
            stage.say("worker", f"attempt {attempt}: {error.sqlstate}, rolled back")
        except AnswerLost:
            stage.say("worker", f"attempt {attempt}: committed, and the answer was lost")
        if attempt < ATTEMPTS:
            time.sleep(BACKOFF.ceiling_s(attempt))
    raise RetriesUsedUp


def _one_fault(stage: Stage, connection: Connection, fault: str) -> None:
    _reset(stage)
    if fault != "after_commit":
        _check(_sqlstate(connection, EVENT, AMOUNT, fault) == "40001", f"{fault} is raised by the server as 40001")
        _check(_state(stage) == ("pending", 0), f"{fault} leaves the event pending, without effect")
    answer, attempts = apply_with_retry(stage, connection, fault, times=1)
    expected = "already" if fault == "after_commit" else "applied"
    _check((answer, attempts) == (expected, 2), f"{fault}: the second attempt answers {expected}")
    _check(apply_event(connection, EVENT, AMOUNT) == "already", f"{fault}: a replay answers already")
    _check(_state(stage) == ("completed", 1), f"{fault}: there is one effect")


def _limits(stage: Stage, connection: Connection) -> None:
    _reset(stage)
    try:
        apply_with_retry(stage, connection, "before_write", times=ATTEMPTS)
    except RetriesUsedUp:
        _check(_state(stage) == ("pending", 0), "used up attempts leave the event pending")
    else:
        raise InvariantBroken("the lab's retry did not end after its attempts; this is a bug of pgonce.")
    for _ in range(2):
        _check(apply_event(connection, REFUSED_EVENT, -1) == "failed", "a negative amount is refused for good")
    _check(_sqlstate(connection, EVENT, 999, "none") == "22000", "another payload is refused as 22000")
    _check(_state(stage) == ("pending", 0), "another payload changes nothing")


def _race(stage: Stage) -> None:
    """Two psql processes apply the event; the second is seen waiting for the first."""
    _reset(stage)
    call = "select wiki_lab.apply_event({}, {}, 'none', {});"
    first = stage.psql("A", call.format(EVENT, AMOUNT, HOLD_S))
    sleeping = "select count(*) from pg_stat_activity where application_name = 'lab-A' and wait_event = 'PgSleep'"
    stage.wait_for(lambda: stage.value(sleeping) == 1, "A holding the job's row")
    second = stage.psql("B", call.format(EVENT, AMOUNT, 0))
    stage.wait_until_blocked("B", by="A")
    answers = []
    for actor, process in (("A", first), ("B", second)):
        said, complaint = process.communicate(timeout=HOLD_S + END_S_MAX)
        _check(process.returncode == 0, f"{actor} ends well, but it said: {complaint.strip()}")
        answers.append(said.strip())
        stage.say(actor, f"-> {said.strip()}")
    _check(answers == ["applied", "already"], f"A answers applied and B already, not {answers}")
    _check(_state(stage) == ("completed", 1), "there is one effect after the race")
    _check(stage.value("select sum(amount) from wiki_lab.batch_effects") == AMOUNT, "the sum is that of one event")


def _reset(stage: Stage) -> None:
    stage.sql("truncate wiki_lab.batch_effects, wiki_lab.batch_jobs")
    stage.sql(
        "insert into wiki_lab.batch_jobs (event_id, amount, status) values (%s, %s, 'pending'), (%s, -1, 'pending')",
        *(EVENT, AMOUNT, REFUSED_EVENT),
    )


def _state(stage: Stage) -> tuple[str, int]:
    status = stage.value("select status from wiki_lab.batch_jobs where event_id = %s", EVENT)
    return status, stage.value("select count(*) from wiki_lab.batch_effects")


def _sqlstate(connection: Connection, event: int, amount: int, fault: str) -> str | None:
    try:
        apply_event(connection, event, amount, fault)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(f"the lab's experiment failed: it should hold that {what}. This is a bug of pgonce.")


SCENARIO = Scenario(
    name="experiment",
    title="Run it again: one event, three faults, a race",
    question="The effect was written and the answer never came. Does running it again add the money twice?",
    right_way="One function locks the job's row, compares the payload, looks at the state, and writes effect and "
    "completed in the same transaction. 40001 and a lost answer are tried again, three times at most.",
    right=play,
)
