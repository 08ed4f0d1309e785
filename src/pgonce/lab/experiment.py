"""The experiment that pgonce grew from: one event, three faults, a bounded retry, and a race of two psql processes.

Its six lines have fixed words. What stands in them was read from the server or counted, and each is printed only after
everything that it says was checked; otherwise InvariantBroken is raised. The 40001 is raised by the server, but on
request, and the lost answer is played by the client: the scenarios after this one have the real ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.resources import files

import psycopg

from pgonce.errors import InvariantBroken
from pgonce.lab.scenario import Line, Scenario, verbatim
from pgonce.lab.stage import END_S_MAX, Connection, Stage
from pgonce.model.backoff import Backoff

ATTEMPTS = 3
HOLD_S = 3.0
"""How long the first worker of the race keeps its lock, so that the second one can be seen waiting."""
EVENT, AMOUNT, OTHER_AMOUNT, REFUSED_EVENT = 1, 100, 999, 2
BACKOFF = Backoff()
WAITS_S = [0.01, 0.02]
"""What a worker waits between its three attempts; without jitter, for there is only one of it."""
RETRIED: tuple[type[psycopg.Error], ...] = (psycopg.errors.SerializationFailure,)
"""The errors of the server after which the same call may succeed. All others are about the event, and stay."""


class AnswerLost(Exception):
    """The client was told nothing after COMMIT."""


class RetriesUsedUp(Exception):
    """Every attempt failed for a reason that allows another one."""


def play(stage: Stage) -> Iterator[Line]:
    """Play the whole experiment and yield its six lines."""
    set_up(stage)
    connection = stage.connect("worker")
    for fault in ("before_write", "after_write", "after_commit"):
        yield verbatim(f"{fault}: {_one_fault(stage, connection, fault)}")
    yield verbatim(_limits(stage, connection))
    for _ in range(2):
        yield verbatim(f"race: {_race(stage)}")


def set_up(stage: Stage) -> None:
    """Make the schema with its tables and its function."""
    stage.sql("create schema wiki_lab")
    stage.sql(function_text())


def function_text() -> str:
    """Return the SQL of the tables and the function."""
    return files("pgonce.lab").joinpath("apply_event.sql").read_text("utf-8")


def apply_event(connection: Connection, event: int, amount: int, fault: str = "none") -> str:
    """Apply an event in a transaction of its own; after COMMIT, ``after_commit`` loses the answer."""
    in_server = "none" if fault == "after_commit" else fault
    with connection.transaction():
        row = connection.execute("select wiki_lab.apply_event(%s, %s, %s, 0)", (event, amount, in_server)).fetchone()
    if fault == "after_commit":
        raise AnswerLost
    assert row is not None
    return str(row[0])


def apply_with_retry(
    stage: Stage, call: Callable[[int], str], *, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, int]:
    """Make the call, which is given the number of the attempt, until it answers; return the answer and that number.

    Only 40001 and a lost answer are tried again: the first is certainly not applied, the second is looked up by the
    function itself, which asks before it writes.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            answer = call(attempt)
            stage.say("worker", f"attempt {attempt}: {answer}")
            return answer, attempt
        except RETRIED as error:
            stage.say("worker", f"attempt {attempt}: {error.sqlstate}, rolled back")
        except AnswerLost:
            stage.say("worker", f"attempt {attempt}: committed, and the answer was lost")
        if attempt < ATTEMPTS:
            sleep(BACKOFF.ceiling_s(attempt))
    raise RetriesUsedUp


def _one_fault(stage: Stage, connection: Connection, fault: str) -> str:
    _reset(stage)
    if fault != "after_commit":
        _check(_sqlstate(connection, EVENT, AMOUNT, fault) == "40001", f"{fault} is raised by the server as 40001")
        _check(_state(stage) == ("pending", 0), f"{fault} leaves the event pending, without effect")

    def call(attempt: int) -> str:
        return apply_event(connection, EVENT, AMOUNT, fault if attempt == 1 else "none")

    answer, attempts = apply_with_retry(stage, call)
    expected = "already" if fault == "after_commit" else "applied"
    _check((answer, attempts) == (expected, 2), f"{fault}: the second attempt answers {expected}")
    replay = apply_event(connection, EVENT, AMOUNT)
    _check(replay == "already", f"{fault}: a replay answers already")
    other = _sqlstate(connection, EVENT, OTHER_AMOUNT, "none")
    _check(other == "22000", f"{fault}: another payload for the completed event is refused as 22000")
    status, effects = _state(stage)
    _check((status, effects) == ("completed", 1), f"{fault}: there is one effect")
    return f"attempts={attempts} replay={replay} effect_count={effects}"


def _limits(stage: Stage, connection: Connection) -> str:
    _reset(stage)
    attempts = _use_up(stage, connection)
    status, effects = _state(stage)
    _check((status, effects) == ("pending", 0), "used up attempts leave the event pending")

    answers = {apply_event(connection, REFUSED_EVENT, -1) for _ in range(2)}
    _check(answers == {"failed"}, "a negative amount is refused for good")
    stored = stage.value("select status from wiki_lab.batch_jobs where event_id = %s", REFUSED_EVENT)
    _check(stored == "failed", "the refusal is stored")
    other = _sqlstate(connection, REFUSED_EVENT, OTHER_AMOUNT, "none")
    _check(other == "22000", "another payload for the failed event is refused as 22000")

    conflict = _conflict(stage, connection)
    _check(_state(stage) == ("pending", 0), "another payload changes nothing")
    permanent = "yes" if stored == "failed" else "no"
    return f"exhausted={attempts} {status}|{effects} permanent_failed={permanent} payload_conflict={conflict}"


def _use_up(stage: Stage, connection: Connection) -> int:
    """Fail every attempt; return how many there were."""
    tried: list[int] = []
    slept_s: list[float] = []

    def call(attempt: int) -> str:
        tried.append(attempt)
        return apply_event(connection, EVENT, AMOUNT, "before_write")

    def sleep(wait_s: float) -> None:
        slept_s.append(wait_s)
        time.sleep(wait_s)

    try:
        apply_with_retry(stage, call, sleep=sleep)
    except RetriesUsedUp:
        _check(tried == list(range(1, ATTEMPTS + 1)), f"there are {ATTEMPTS} attempts, not {tried}")
        _check(slept_s == WAITS_S, f"the waits between them are {WAITS_S} s, not {slept_s}")
        return len(tried)
    raise InvariantBroken("the lab's retry did not end after its attempts; this is a bug of pgonce.")


def _conflict(stage: Stage, connection: Connection) -> str | None:
    """Send another payload through the retry, which makes one attempt; return its SQLSTATE."""
    tried: list[int] = []

    def call(attempt: int) -> str:
        tried.append(attempt)
        return apply_event(connection, EVENT, OTHER_AMOUNT)

    sqlstate = None
    try:
        apply_with_retry(stage, call)
    except psycopg.Error as error:
        sqlstate = error.sqlstate
        stage.say("worker", f"attempt {len(tried)}: {sqlstate}, which no other attempt would change")
    except RetriesUsedUp:
        stage.say("worker", f"tried {len(tried)} times")
    _check(sqlstate == "22000", "another payload is refused as 22000")
    _check(tried == [1], "another payload is not tried again")
    return sqlstate


def _race(stage: Stage) -> str:
    """Two psql processes apply the event; the second is seen waiting for the first."""
    _reset(stage)
    text = "select wiki_lab.apply_event({}, {}, 'none', {});"
    first = stage.psql("A", text.format(EVENT, AMOUNT, HOLD_S))
    sleeping = "select count(*) from pg_stat_activity where application_name = 'lab-A' and wait_event = 'PgSleep'"
    stage.wait_for(lambda: stage.value(sleeping) == 1, "A holding the job's row")
    second = stage.psql("B", text.format(EVENT, AMOUNT, 0))
    is_blocked = stage.wait_until_blocked("B", by="A")
    answers = []
    for actor, process in (("A", first), ("B", second)):
        said, complaint = process.communicate(timeout=HOLD_S + END_S_MAX)
        _check(process.returncode == 0, f"{actor} ends well, but it said: {complaint.strip()}")
        answers.append(said.strip())
        stage.say(actor, f"-> {said.strip()}")
    _check(answers == ["applied", "already"], f"A answers applied and B already, not {answers}")
    status, effects = _state(stage)
    _check((status, effects) == ("completed", 1), "there is one effect after the race")
    cents = stage.value("select sum(amount) from wiki_lab.batch_effects")
    _check(cents == AMOUNT, "the sum is that of one event")
    observed = "observed" if is_blocked else "not_observed"
    return f"blocked_B_by_A={observed} {'/'.join(answers)} effect_count={effects} sum={cents}"


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
    limited=True,
)
