"""The fast path writes what the exact path writes, and where it guessed wrong the exact path has the word."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from database.jobs import Desk, Watching, in_thread, make_order, soon, until_blocked
from pgonce.db import copying
from pgonce.db.transaction import Transaction
from pgonce.engine import apply, fast
from pgonce.engine import run as run_module
from pgonce.engine.apply import settle_rows
from pgonce.engine.run import Order
from pgonce.errors import InvariantBroken, StopRequested

EXAMPLES = int(os.environ.get("PGONCE_MODEL_EXAMPLES", "25"))

# To make a failure small takes minutes.
PHASES = [Phase.explicit, Phase.generate, *([Phase.shrink] if "PGONCE_MODEL_SHRINK" in os.environ else [])]

MANY = fast.COPY_ROWS_MIN * 2

Row = tuple[str, str, int, str]

IDS = st.sampled_from(["a", "b", "B", "é", "g" * 300, "a b"])
ROW = st.tuples(
    st.sampled_from(["", "", "s"]), IDS, st.sampled_from([0, 1, 2**63 - 1, -4]), st.sampled_from(["x", "y"])
)
BAD = st.just(("", "", 5, "no id"))
INPUT = st.lists(st.one_of(ROW, ROW, ROW, BAD), min_size=1, max_size=14)
LIMITS = st.fixed_dictionaries(
    {
        "chunk_rows": st.sampled_from([1, 2, 3, 5, 100]),
        "checkpoint": st.sampled_from(["chunk", "chunk", "item", "all"]),
        "on_error": st.sampled_from(["quarantine", "quarantine", "stop"]),
        "max_rejected": st.sampled_from([None, None, 0, 1, 2]),
    }
)

WORKERS = st.sampled_from([2, 4])

TABLES = (
    """select source, event_id, status, amount_cents, payload, error, fingerprint, granted, line, epoch, attempts,
    adopted, dense_rank() over (order by run_id) from pgonce.event where job = %s order by 1, 2""",
    "select source, event_id, amount_cents from pgonce.effect where job = %s order by 1, 2",
    """select dense_rank() over (order by run_id), line, epoch, kind, source, event_id, amount_cents, reason, raw
    from pgonce.finding where run_id in (select run_id from pgonce.run where job = %s) order by 1, 2""",
    """select source, event_id, step, action, old_status, old_amount_cents, old_payload, old_error, old_attempts
    from pgonce.event_history where job = %s order by 1, 2, 3""",
    """select dense_rank() over (order by s.run_id), s.epoch, s.position, s.lines, s.digest, s.rows_read,
    s.cents_read, s.already, s.already_cents, s.failed_again, s.failed_again_cents, s.pending_again, s.late,
    s.late_cents, s.ended_how from pgonce.start as s join pgonce.run as r using (run_id)
    where r.job = %s order by 1, 2""",
)
_RUN_AND_TIME = re.compile(r"\(run [0-9]+, [^)]*\)")


def tables(desk: Desk, job: str) -> list[list[tuple[Any, ...]]]:
    """Return all that is stored of a job, but for times, tokens, and the numbers of runs and of chunks."""
    return [
        [tuple(_RUN_AND_TIME.sub("(run)", v) if isinstance(v, str) else v for v in row) for row in desk.sql(query, job)]
        for query in TABLES
    ]


def outcome(desk: Desk, path: Path, order: Order) -> Any:
    """Run, and return the counts and the exit code, or the message that it stopped with."""
    try:
        report = desk.run(path, order=order)
    except StopRequested as stopped:
        return _RUN_AND_TIME.sub("(run)", str(stopped))
    return report.start.as_dict(), report.run.as_dict(), report.exit_code


def settle_exactly(_self: fast.Guess, *arguments: Any) -> None:
    """Settle by the exact path alone."""
    settle_rows(*arguments)


def modelled(model: dict[tuple[str, str], list[Any]], rows: list[Row]) -> list[str]:
    """Settle rows in a dictionary; return the result of each."""
    results = []
    for source, event_id, amount, note in rows:
        if not event_id:
            results.append("rejected")
            continue
        event = model.setdefault((source, event_id), ["new", amount, note])
        if event[1:] != [amount, note]:
            results.append("conflict")
        elif event[0] in ("new", "pending"):
            event[0] = "failed" if amount < 0 else "completed"
            results.append("applied" if amount >= 0 else "failed")
        else:
            results.append("already" if event[0] == "completed" else "failed")
    return results


REOPEN = """with h as (
        insert into pgonce.event_history (job, source, event_id, step, action, old_status, old_amount_cents,
        old_payload, old_error, old_attempts, who, why)
        select job, source, event_id, 1, 'reopened', status, amount_cents, payload, error, attempts, 'me', 'again'
        from pgonce.event where job = %s and status = 'failed'
    )
    update pgonce.event set status = 'pending', attempts = 0, error = null where job = %s and status = 'failed'"""


@pytest.mark.parametrize("kind", ["apply", "adopt"])
def test_the_fast_path_the_exact_path_and_a_dictionary_agree(desk: Desk, kind: str) -> None:
    """Every row that is stored is the same: of events, effects, findings, histories and starts."""
    numbers = itertools.count()

    # A block of columns ends with the input, chunks of rows may have an empty one behind it: their number may differ.
    @settings(max_examples=EXAMPLES, database=None, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(inputs=st.lists(INPUT, min_size=1, max_size=3), reopen=st.booleans(), limits=LIMITS, workers=WORKERS)
    def check(inputs: list[list[Row]], reopen: bool, limits: dict[str, Any], workers: int) -> None:
        number = next(numbers)
        count = {"exact": 1, "fast": 1, "columns": 1, "exact and workers": workers, "columns and workers": workers}
        if limits["checkpoint"] == "all":
            count = dict.fromkeys(("exact", "fast", "columns"), 1)
        paths = [desk.csv(rows, header="src,id,amount,note") for rows in inputs]
        reports: dict[str, list[Any]] = {}
        for way in count:
            job = f"{way}{number}"
            for round_, path in enumerate(paths):
                order = make_order(job=job, kind=kind, source_column="src", also=True, workers=count[way], **limits)
                with (
                    patch.object(fast.Guess, "settle", settle_exactly if "exact" in way else fast.Guess.settle),
                    patch.object(run_module, "AHEAD_ROWS_MIN", 1 if "columns" in way else 1000),
                ):
                    reports.setdefault(way, []).append(outcome(desk, path, order))
                if reopen and round_ == 0:
                    desk.sql(REOPEN, job, job)
        for way in count:
            assert reports[way] == reports["exact"]
            assert tables(desk, f"{way}{number}") == tables(desk, f"exact{number}")
        if kind == "apply" and all(isinstance(report, tuple) for report in reports["fast"]):
            model: dict[tuple[str, str], list[Any]] = {}
            for round_, rows in enumerate(inputs):
                modelled(model, rows)
                if reopen and round_ == 0:
                    for event in model.values():
                        event[0] = "pending" if event[0] == "failed" else event[0]
            stored = desk.sql("select source, event_id, status from pgonce.event where job = %s", f"fast{number}")
            if len(set(map(tuple, inputs))) == len(inputs):  # the same content twice is answered without reading it
                assert {(s, i): status for s, i, status in stored} == {key: e[0] for key, e in model.items()}

    with patch.object(fast, "COPY_ROWS_MIN", 1), patch.object(apply, "COMPLETED_AT_A_TIME", 1):
        check()
    desk.sound()


def rows_of(numbers: Iterator[int] | range, amount: int = 3) -> list[tuple[object, ...]]:
    """Give a row a number, with ids in order."""
    return [(f"{number:06}", amount, "n") for number in numbers]


def statements_of(desk: Desk, action: Callable[[], object]) -> list[str]:
    """Name the statements of ``sql/statements`` that an action ran, COPYs among them, in order."""
    names: list[str] = []
    rows, copy_rows = Transaction.rows, copying.copy_rows

    def watched(self: Transaction, name: str, /, **parameters: object) -> Any:
        names.append(name)
        return rows(self, name, **parameters)

    def watched_copy(transaction: Transaction, name: str, pieces: Any) -> int:
        names.append(name)
        return copy_rows(transaction, name, pieces)

    with patch.object(Transaction, "rows", watched), patch.object(fast, "copy_rows", watched_copy):
        action()
    return names


def test_new_events_are_written_without_asking_and_known_ones_are_asked_for(desk: Desk) -> None:
    """One wrong guess a stretch of known events, and none over new ones; nothing of it shows in the results."""
    old, new = range(3 * MANY), range(3 * MANY, 6 * MANY)
    first = desk.csv(rows_of(old))
    ran = statements_of(desk, lambda: desk.run(first, order=make_order(chunk_rows=MANY)))
    assert (ran.count("classify_events"), ran.count("copy_events"), ran.count("copy_effects")) == (0, 3, 3)
    both = desk.csv(rows_of(itertools.chain(old, new)))
    watching = Watching()
    ran = statements_of(desk, lambda: desk.run(both, order=make_order(chunk_rows=MANY), observer=watching))
    asked, copied = ran.count("classify_events"), ran.count("copy_events")
    # The first chunk is guessed wrong; then they are asked for up to the first that is new; two more are guessed right.
    assert (ran.count("digest_events"), asked, copied, ran.count("copy_effects")) == (4, 1, 4, 3)
    assert [(step.already, step.applied) for step in watching.steps if step.rows] == [(MANY, 0)] * 3 + [(0, MANY)] * 3
    assert watching.retries == []
    again = statements_of(desk, lambda: replayed(desk, both))
    assert (again.count("digest_events"), again.count("classify_events"), again.count("copy_events")) == (6, 0, 0)


def replayed(desk: Desk, path: Any) -> None:
    """Run a finished input again, by reading it."""
    desk.sql("update pgonce.run set touched = true")
    assert desk.run(path, order=make_order(chunk_rows=MANY)).run.balanced


def test_the_whole_input_in_one_transaction_is_asked_for_before_it_is_copied(desk: Desk) -> None:
    """E6: a wrong guess in the last chunk would undo all of it."""
    desk.run(desk.csv(rows_of(range(4 * MANY - 1, 4 * MANY))))
    ran = statements_of(
        desk, lambda: desk.run(desk.csv(rows_of(range(4 * MANY))), order=make_order(chunk_rows=MANY, checkpoint="all"))
    )
    assert (ran.count("move_position"), ran.count("classify_events"), ran.count("copy_events")) == (1, 4, 4)
    assert len(desk.effects()) == 4 * MANY


@pytest.mark.parametrize("end", ["commit", "commit another payload", "rollback"])
def test_a_key_that_another_session_inserted_and_did_not_commit_is_waited_for(desk: Desk, end: str) -> None:
    """E4, I3: what it committed is a replay or a conflict, what it rolled back is applied."""
    desk.run(desk.csv(rows_of(range(MANY, MANY + 1))))
    path = desk.csv(rows_of(range(MANY)))
    payload = '["other"]' if end == "commit another payload" else '["n"]'
    taken = f"{MANY // 2:06}"
    with psycopg.connect(desk.dsn) as other:
        other.execute(
            """insert into pgonce.event (amount_cents, run_id, line, epoch, job, source, event_id, status, payload)
            values (3, 1, 1, 1, 'pay', '', %s, 'completed', %s)""",
            (taken, payload),
        )
        other.execute("insert into pgonce.effect values (3, 'pay', '', %s)", (taken,))
        with in_thread(desk.run, path, order=make_order(on_error="quarantine")) as run:
            looking = Desk(dsn=desk.dsn, clerk=desk.clerk, folder=desk.folder, make_clerk=desk.make_clerk)
            until_blocked(looking, other.info.backend_pid)
            other.rollback() if end == "rollback" else other.commit()
        looking.close()
    start = run.result().start
    found = (start.applied.rows, start.already.rows, start.conflict.rows)
    expected = {"commit": (MANY - 1, 1, 0), "commit another payload": (MANY - 1, 0, 1), "rollback": (MANY, 0, 0)}
    assert found == expected[end]
    desk.sound()


def test_a_key_of_the_user_s_with_the_same_name_is_not_taken_for_ours(desk: Desk) -> None:
    """A unique violation starts the exact path only if it is pgonce's by schema; the user's is found by halving."""
    desk.sql(
        """create table public.mine (id text, constraint event_pkey primary key (id));
        insert into public.mine values ('000007');
        create function public.note() returns trigger language plpgsql as
        $body$ begin insert into public.mine values (new.event_id); return null; end $body$;
        create trigger note after insert on pgonce.effect for each row execute function public.note()"""
    )
    report = desk.run(desk.csv(rows_of(range(MANY))), order=make_order())
    assert (report.start.applied.rows, report.start.failed.rows) == (MANY - 1, 1)
    assert desk.statuses()["000007"] == "failed"


def test_where_copy_is_refused_the_rows_are_inserted(desk: Desk) -> None:
    """Row security takes no COPY; a role under it that may see and write everything gets its work done."""
    role = desk.one("select 'pgonce_writer_' || oid from pg_database where datname = current_database()")
    desk.sql(
        f"""create role {role}; grant all on schema pgonce to {role};
        grant all on all tables in schema pgonce to {role}; grant all on all sequences in schema pgonce to {role};
        alter table pgonce.event enable row level security;
        create policy all_of_it on pgonce.event to {role} using (true)"""
    )
    try:
        desk.clerk.session.connect(soon(desk.clerk)).execute(f"set session authorization {role}")
        ran = statements_of(desk, lambda: desk.run(desk.csv(rows_of(range(MANY))), order=make_order()))
        assert (ran.count("copy_events"), ran.count("insert_events")) == (0, 1)
        assert len(desk.effects()) == MANY
    finally:
        desk.clerk.session.close()
        desk.sql(f"drop owned by {role}; drop role {role}")


def test_an_effect_without_its_event_stops_the_run_here_too(desk: Desk) -> None:
    """P1: the promise is found broken, the exact path says so, and it does not try for ever."""
    desk.sql("alter table pgonce.effect disable trigger effect_reference")
    desk.sql("insert into pgonce.effect values (3, 'pay', '', '000007')")
    with pytest.raises(InvariantBroken, match="without its completed event"):
        desk.run(desk.csv(rows_of(range(MANY))), order=make_order())
    assert desk.statuses() == {}
