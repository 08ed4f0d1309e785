"""Several workers on one input (E8, I4): every result is that of a single worker, whoever is first, fails or dies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from database.jobs import Desk, Watching, clerk_on, in_thread, until, until_blocked
from database.working import PATIENT_S, no_worker_is_left, role_of_few, waiting_in_turn, writing
from pgonce.db.transaction import Transaction
from pgonce.engine import run as run_module
from pgonce.engine import workers as workers_module
from pgonce.engine.applying import Applying
from pgonce.engine.workers import Ahead
from pgonce.errors import ConfigurationError, Interrupted, StopRequested
from pgonce.model.limits import Limits

WORKERS = 3


@pytest.mark.parametrize("workers", [2, 4])
def test_the_first_in_input_order_counts(desk: Desk, workers: int) -> None:
    """I4, E8: one id in every chunk, each time with another payload; whatever chunk is stored first."""
    rows = [row for number in range(40) for row in (("same", 5, f"n{number}"), (f"own{number:02}", 1, ""))]
    report = desk.run(desk.csv(rows), chunk_rows=2, workers=workers)
    assert desk.one("select payload from pgonce.event where event_id = 'same'") == '["n0"]'
    assert [line for line, _, _ in desk.findings()] == list(range(4, 82, 2))
    assert (report.run.applied.rows, report.run.conflict.rows) == (41, 39)
    desk.sound()
    no_worker_is_left(desk)


def test_a_later_chunk_lets_go_of_what_an_earlier_one_waits_for(desk: Desk) -> None:
    """E8: chunk 2 holds id x when chunk 1 comes to it; chunk 1 gets it, and chunk 2 finds it stored."""
    path = desk.csv([("a", 1, ""), ("x", 1, "first"), ("x", 2, "second"), ("y", 1, "")])
    desk.run(desk.csv([("0", 1, "")]))
    with psycopg.connect(desk.dsn) as other:
        other.execute(
            """insert into pgonce.event (job, source, event_id, status, amount_cents, payload, run_id, line, epoch)
            values ('pay', '', 'a', 'failed', 1, '[""]', 1, 9, 1)"""
        )
        clerk = desk.make_clerk()
        with in_thread(desk.run, path, clerk=clerk, chunk_rows=2, workers=2, chunk_deadline_s=PATIENT_S) as ours:
            until_blocked(desk, other.info.backend_pid)
            waiting_in_turn(desk, 2)  # the other one, and the worker that has stored chunk 2
            other.rollback()
            report = ours.result(timeout=30)
    assert desk.effects() == {"0": 1, "a": 1, "x": 1, "y": 1}
    assert [(line, kind) for line, kind, _ in desk.findings()] == [(4, "conflict")]
    assert report.exit_code == 1
    desk.sound()


def test_a_third_one_between_two_chunks_is_seen_through(desk: Desk) -> None:
    """E8, Q60: chunk 1 waits for a stranger, who waits for chunk 2, which waits for its turn: no server sees that."""
    desk.run(desk.csv([("0", 1, "")]))
    insert = """insert into pgonce.event (job, source, event_id, status, amount_cents, payload, run_id, line, epoch)
        values ('pay', '', %s, 'failed', 1, '[""]', 1, %s, 1)"""
    path = desk.csv([("a", 1, ""), ("b", 1, ""), ("y", 1, ""), ("z", 1, "")])
    with psycopg.connect(desk.dsn) as stranger:
        stranger.execute(insert, ("a", 8))
        clerk, limits = desk.make_clerk(), {"chunk_rows": 2, "workers": 2, "chunk_deadline_s": PATIENT_S}
        with in_thread(desk.run, path, clerk=clerk, **limits) as ours:
            until_blocked(desk, stranger.info.backend_pid)
            waiting_in_turn(desk, 2)
            with in_thread(stranger.execute, insert, ("y", 9)) as theirs:
                theirs.result(timeout=30)
            stranger.rollback()
            report = ours.result(timeout=30)
    assert report.run.applied.rows == 4
    desk.sound()


def test_sql_of_the_user_runs_in_its_turn(desk: Desk) -> None:
    """E8: an effect that looks at what earlier chunks wrote, with nothing to stop it from doing it twice."""
    desk.sql("create table seen (note text, cents bigint)")
    effect = "insert into seen select note, 1 from chunk where note not in (select note from seen) group by note"
    rows = [(number, 1, f"n{number % 3}") for number in range(60)]
    desk.run(desk.csv(rows), effect=effect, chunk_rows=3, workers=4)
    assert sorted(desk.sql("select note from seen")) == [("n0",), ("n1",), ("n2",)]
    desk.sound()


def test_a_check_and_a_balance_are_those_of_one_worker(desk: Desk) -> None:
    """E8, E7: what the balance does not allow is refused, in input order, and nothing else."""
    ends: list[Any] = []
    rows = [(number, 7, "a") if number % 5 else (number, 40, "b") for number in range(50)]
    for workers in (1, WORKERS):
        desk.sql("drop table if exists account; create table account (id int, cents bigint check (cents >= 0))")
        desk.sql("insert into account values (1, 300)")
        effect = "update account set cents = cents - (select sum(amount_cents) from chunk)"
        job = f"job{workers}"
        report = desk.run(desk.csv(rows), job=job, effect=effect, chunk_rows=4, workers=workers, also=True)
        ends.append(
            (
                report.run.as_dict(),
                desk.sql("select cents from account"),
                desk.sql("select event_id, status, attempts from pgonce.event where job = %s order by 1", job),
            )
        )
    assert ends[0] == ends[1]
    assert 0 <= ends[0][1][0][0] < 7


def dying(at: str, error: BaseException) -> Callable[[Applying, Transaction], None]:
    """Make a first step that ends its worker at the chunk with this event."""
    store = Applying.store

    def stored(self: Applying, transaction: Transaction) -> None:
        if any(getattr(entry.row, "event_id", None) == at for entry in self.part.by_row().entries):
            raise error
        store(self, transaction)

    return stored


@pytest.mark.parametrize("at", range(8))
def test_a_worker_that_dies_fails_the_run_and_what_was_before_it_stands(desk: Desk, at: int) -> None:
    """E8: the queue is drained, the error is raised, the position is before the chunk; the same again goes on."""
    path = desk.csv([(f"{number:02}", 1, "") for number in range(16)])
    clerk = desk.make_clerk()
    with patch.object(Applying, "store", dying(f"{2 * at:02}", MemoryError("no more"))), pytest.raises(MemoryError):
        desk.run(path, clerk=clerk, chunk_rows=2, workers=WORKERS)
    clerk.session.close()
    no_worker_is_left(desk)
    assert len(desk.effects()) == 2 * at
    assert [lines for _, _, lines in desk.positions()] == [1 + 2 * at if at else 0]
    desk.sound()
    assert desk.run(path, chunk_rows=2, workers=WORKERS).run.applied.rows == 16


def test_an_input_that_cannot_be_read_to_its_end_is_settled_up_to_there(desk: Desk) -> None:
    """E8: what comes before the broken place is committed, whichever worker met it."""
    chunks = run_module.chunks

    def broken(*arguments: Any) -> Any:
        for number, chunk in enumerate(chunks(*arguments)):
            if number == 3:
                raise OSError("the disk is gone")
            yield chunk

    path, clerk = desk.csv([(f"{number:02}", 1, "") for number in range(16)]), desk.make_clerk()
    with patch.object(run_module, "chunks", broken), pytest.raises(OSError, match="the disk is gone"):
        desk.run(path, clerk=clerk, chunk_rows=2, workers=WORKERS)
    clerk.session.close()
    no_worker_is_left(desk)
    assert len(desk.effects()) == 6
    assert desk.run(path, chunk_rows=2, workers=WORKERS).run.applied.rows == 16


def test_who_is_asked_to_stop_leaves_nothing_begun(desk: Desk) -> None:
    """E8, R8: what was begun ahead is rolled back, never committed: the position is the last chunk's in turn."""
    path = desk.csv([(f"{number:02}", 1, "") for number in range(40)])
    watching = Watching()
    with pytest.raises(Interrupted):
        desk.run(
            path,
            clerk=desk.make_clerk(),
            chunk_rows=2,
            workers=4,
            observer=watching,
            interrupted=lambda: len(watching.steps) >= 3,
        )
    no_worker_is_left(desk)
    assert len(desk.effects()) == 6
    assert desk.run(path, chunk_rows=2, workers=4).run.applied.rows == 40


def test_a_transaction_that_waits_too_long_is_let_go_and_done_in_its_turn(desk: Desk) -> None:
    """E8: no lock is held ahead for longer than a part of a chunk's time, and nothing is lost or done twice by that."""
    path = desk.csv([(f"{number:02}", 1, "") for number in range(6)])
    options = {"effect": "select pg_advisory_xact_lock_shared(3)", "chunk_rows": 2, "workers": 2}
    with psycopg.connect(desk.dsn) as gate:
        gate.execute("select pg_advisory_xact_lock(3)")
        with in_thread(desk.run, path, clerk=desk.make_clerk(), chunk_deadline_s=4.0, **options) as ours:
            until_blocked(desk, gate.info.backend_pid)
            until(lambda: writing(desk) == 2, "chunk 2, stored ahead")
            until(lambda: writing(desk) == 1, "the end of what was held ahead")
            gate.rollback()
            report = ours.result(timeout=30)
    assert report.run.applied.rows == 6
    desk.sound()


def test_a_connection_lost_while_it_waits_is_no_attempt(desk: Desk) -> None:
    """R1, E8: the backend of a chunk that waits is ended; with a single attempt allowed, the run ends well."""
    ended: list[int] = []

    def after(number: int) -> None:
        if number == 1:
            waiting_in_turn(desk, 1)
            ended.extend(
                row[0]
                for row in desk.sql(
                    """select pid from pg_stat_activity, lateral pg_terminate_backend(pid, 5000) as done
                    where datname = current_database() and state = 'idle in transaction' and done"""
                )
            )

    watching = Watching(after)
    path = desk.csv([(f"{number:02}", 1, "") for number in range(12)])
    with patch.object(workers_module, "LOOK_S", 60.0):  # nobody looks at it before its turn
        report = desk.run(path, clerk=desk.make_clerk(), chunk_rows=2, workers=WORKERS, attempts=1, observer=watching)
    assert ended
    assert report.run.applied.rows == 12
    assert watching.retries == []
    assert {step.rows for step in watching.steps} <= {2, 0}, "a chunk was taken apart as if its rows were to blame"
    desk.sound()


def test_where_temporary_tables_are_not_allowed_the_relation_is_made_in_its_turn(desk: Desk) -> None:
    """E8: a table of the schema would be locked; no chunk has to wait for that."""
    desk.sql("create table log (event_id text)")
    database = desk.one("select current_database()")
    desk.sql(f'revoke temporary on database "{database}" from public')
    role = f"plain_{database[-12:]}"
    desk.sql(f"create role {role} login")
    try:
        desk.sql(
            f"grant usage, create on schema pgonce to {role}; grant all on all tables in schema pgonce to {role}; "
            f"grant all on log to {role}; grant all on all sequences in schema pgonce to {role}"
        )
        clerk = desk.make_clerk()
        clerk.session.target = type(clerk.session.target)(
            conninfo=psycopg.conninfo.make_conninfo(clerk.session.target.conninfo, user=role), named_by="a test"
        )
        rows = [(f"{number:02}", 1, "") for number in range(20)]
        effect = "insert into public.log select event_id from chunk"
        desk.run(desk.csv(rows), clerk=clerk, effect=effect, chunk_rows=2, workers=WORKERS)
        clerk.session.close()
        assert desk.one("select count(distinct event_id) from log") == desk.one("select count(*) from log") == 20
    finally:
        desk.sql(f"drop owned by {role}; drop role {role}")


def test_a_bad_row_stops_the_run_before_it(desk: Desk) -> None:
    """E7, E8: the rows before it are applied, and no row behind it, though they were begun."""
    rows = [(f"{number:02}", "bad" if number == 9 else 1, "") for number in range(30)]
    with pytest.raises(StopRequested, match="line 11"):
        desk.run(desk.csv(rows), clerk=desk.make_clerk(), chunk_rows=2, workers=4, on_error="stop")
    no_worker_is_left(desk)
    assert sorted(desk.effects()) == [f"{number:02}" for number in range(9)]


def test_an_effect_that_cannot_run_is_tried_as_often_as_with_one_worker(desk: Desk) -> None:
    """R1: what ran ahead and failed in its turn was an attempt."""
    counts = []
    for workers in (1, 2):
        desk.sql("drop sequence if exists tried; create sequence tried")
        effect = "select nextval('tried'); do $$ begin raise exception 'no' using errcode = '40001'; end $$"
        path = desk.csv([("a", 1, ""), ("b", 1, "")])
        desk.run(path, job=f"j{workers}", effect=effect, chunk_rows=1, workers=workers, also=True)
        counts.append(desk.one("select last_value from tried"))
    assert counts[0] == counts[1] == 6


def test_positions_move_in_input_order(desk: Desk) -> None:
    """E8: as with one worker, each commit is one chunk further."""
    watching = Watching()
    desk.run(desk.csv([(number, 1, "") for number in range(100)]), chunk_rows=3, workers=4, observer=watching)
    assert all(earlier < later for earlier, later in pairwise(step.position.lines for step in watching.steps))
    assert sum(step.applied for step in watching.steps) == 100


@pytest.mark.parametrize("workers", [0, -1, 33, 2.5])
def test_a_number_of_workers_that_makes_no_sense_is_refused(workers: Any) -> None:
    """From 1 to the bound."""
    with pytest.raises(ConfigurationError, match="--workers"):
        Limits(workers=workers)


def test_one_transaction_has_one_worker() -> None:
    """The whole input in one transaction is nothing that could be shared out."""
    with pytest.raises(ConfigurationError, match="--checkpoint all"):
        Limits(workers=2, checkpoint="all")


def test_letting_go_rolls_back(desk: Desk) -> None:
    """The context of a transaction would commit if it were left without an error: that is never done."""
    clerk = desk.make_clerk()
    desk.sql("create table t (a int)")

    def store(_self: Applying, transaction: Transaction) -> None:
        transaction.connection.execute("insert into public.t values (1)")

    applying = object.__new__(Applying)
    ahead = Ahead(applying=applying, session=clerk.session, deadline=clerk.deadline(30.0))
    with patch.object(Applying, "store", store):
        ahead.begin(clerk.clock)
    assert ahead.transaction is not None
    ahead.let_go()
    ahead.let_go()
    assert ahead.transaction is None
    assert desk.one("select count(*) from t") == 0


def test_with_too_few_connections_the_run_goes_on_with_what_it_has(desk: Desk) -> None:
    """A role may have two connections, and three workers are asked for: one works, which is said once."""
    role = role_of_few(desk)
    said: list[str] = []
    try:
        clerk = clerk_on(psycopg.conninfo.make_conninfo(desk.dsn, user=role))
        clerk.session._tell = said.append
        path = desk.csv([(f"{number:02}", 1, "") for number in range(40)])
        with patch.object(workers_module, "CONNECT_S_MAX", 0.5):
            assert desk.run(path, clerk=clerk, chunk_rows=2, workers=WORKERS).run.applied.rows == 40
        clerk.session.close()
        assert [text.partition(":")[0] for text in said] == ["one more connection, for a worker"]
        desk.sound()
    finally:
        no_worker_is_left(desk)
        desk.sql(f"drop owned by {role}; drop role {role}")


def test_two_runs_with_workers_never_wait_for_one_another(desk: Desk) -> None:
    """E8, Q60: each holds ahead what the other needs now; no server sees that, and both end all the same."""
    rows = [(f"{number:03}", 1, "n") for number in range(120)]
    paths = desk.csv(rows), desk.csv(list(reversed(rows)))
    desk.run(desk.csv([("x", 1, "")]))
    limits = {"workers": WORKERS, "chunk_deadline_s": PATIENT_S}
    with (
        in_thread(desk.run, paths[0], clerk=desk.make_clerk(), chunk_rows=7, **limits) as one,
        in_thread(desk.run, paths[1], clerk=desk.make_clerk(), chunk_rows=11, **limits) as two,
    ):
        reports = one.result(timeout=60), two.result(timeout=60)
    assert sum(report.start.applied.rows for report in reports) == 120
    assert sum(report.start.already.rows for report in reports) == 120
    desk.sound()


@pytest.mark.parametrize("table", ["event", "effect", "finding"])
def test_a_trigger_of_the_user_on_our_tables_has_one_worker_work(desk: Desk, table: str) -> None:
    """E8: it runs when a row is stored, which would be ahead of its turn; the result says why there is one worker."""
    desk.sql(
        f"""create table seen (note text);
        create function look() returns trigger language plpgsql as $$ begin
            if not exists (select from public.seen) then insert into public.seen values ('first'); end if;
            return null;
        end $$;
        create trigger mine after insert on pgonce.{table} for each row execute function look()"""
    )
    rows = [(f"{number:02}", 1 if number % 2 else "bad", "") for number in range(40)]
    report = desk.run(desk.csv(rows), chunk_rows=2, workers=4)
    assert desk.sql("select note from seen") == [("first",)]
    assert any("mine" in note and "one worker" in note for note in report.notes)
    desk.sound()
