"""The proxy against a real server: it forwards everything faithfully, and its faults do what their names say."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from faults.harness import (
    CUT_BEFORE,
    ERROR_40001,
    FAULTS,
    Ended,
    Fault,
    FaultLoop,
    Summary,
    forked,
    kill_at,
    program,
    run_limited,
    wait_until,
    wait_until_blocked,
    wait_until_quiet,
)
from pgonce.crashtest import boundary as at
from pgonce.crashtest.boundary import PASS, Action, Boundary
from pgonce.crashtest.proxy import Proxy
from pgonce.crashtest.wire import Kind
from pgonce.errors import ConfigurationError

ReachProxy = Callable[..., contextlib.AbstractContextManager[tuple[Proxy, str]]]


@pytest.fixture
def ledger(empty_database: str) -> str:
    """Give the direct dsn of a database with one table to write to."""
    with psycopg.connect(empty_database) as connection:
        connection.execute("create table ledger (id integer primary key, cents bigint not null)")
    return empty_database


@pytest.fixture
def through(tmp_path: Path) -> ReachProxy:
    """Give a context manager of a proxy in front of a dsn's server, and the dsn through it."""

    @contextlib.contextmanager
    def make(
        dsn: str, on_boundary: Callable[[Boundary], Action] = lambda _: PASS, *, is_tcp: bool = False, **options: str
    ) -> Iterator[tuple[Proxy, str]]:
        folder = None if is_tcp else tmp_path / "s"
        with Proxy.of_dsn(dsn, on_boundary=on_boundary, listen_dir=folder, **options) as made:  # type: ignore[arg-type]
            yield made, made.dsn(dsn)

    return make


def once(statement: str, action: Action) -> Callable[[Boundary], Action]:
    """Fail the first boundary whose statement begins so."""
    left = [action]

    def on_boundary(boundary: Boundary) -> Action:
        return left.pop() if left and boundary.statement.startswith(statement) else PASS

    return on_boundary


def rows(dsn: str) -> list[tuple[int, int]]:
    """Read the ledger directly."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("select id, cents from ledger order by id").fetchall()


def insert_and_commit(dsn: str, *, key: int = 1) -> None:
    """Write one row in a transaction with explicit statements."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("insert into ledger values (%s, 100)", (key,))
        connection.execute("commit")


# Forwarding


@pytest.mark.parametrize("is_tcp", [False, True], ids=["unix", "tcp"])
def test_results_errors_and_notices_pass_unchanged(ledger: str, through: ReachProxy, is_tcp: bool) -> None:
    """A client sees the same results, errors and notices as on a direct connection, over both kinds of socket."""
    with through(ledger, is_tcp=is_tcp) as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        notices: list[str | None] = []
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.execute("do $$ begin raise notice 'hello'; end $$")
        assert notices == ["hello"]
        assert connection.execute("select %s::text || 'é'", ("ü",)).fetchall() == [("üé",)]
        with pytest.raises(errors.DivisionByZero):
            connection.execute("select 1 / 0")
        with pytest.raises(errors.UndefinedTable):
            connection.execute("select * from nowhere where id = %s", (1,))
        assert connection.execute("select 1").fetchone() == (1,)


def test_large_results_and_values_pass_whole(ledger: str, through: ReachProxy) -> None:
    """Many rows, a value longer than any buffer, and a statement that long arrive complete in both directions."""
    big = "x" * 5_000_000
    with through(ledger) as (_, dsn), psycopg.connect(dsn) as connection:
        count = connection.execute("select i, repeat('y', 100) from generate_series(1, 100000) i").fetchall()
        assert len(count) == 100_000
        assert connection.execute("select %s::text", (big,)).fetchone() == (big,)
        assert connection.execute(f"select length('{big}')").fetchone() == (5_000_000,)


def test_copy_passes_both_ways_and_its_failures_too(ledger: str, through: ReachProxy) -> None:
    """COPY in and out move the same rows; a refused row and a client that gives up leave the connection usable."""
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.cursor()
        with cursor.copy("copy ledger from stdin") as copy:
            for key in range(20_000):
                copy.write_row((key, key * 2))
        with cursor.copy("copy (select id from ledger where id < %s order by id) to stdout", (3,)) as copy:
            assert [row[0] for row in copy.rows()] == ["0", "1", "2"]
        with pytest.raises(errors.UniqueViolation), cursor.copy("copy ledger from stdin") as copy:
            copy.write_row((1, 1))
        with pytest.raises(KeyError), cursor.copy("copy ledger from stdin"):
            raise KeyError
        assert cursor.execute("select count(*) from ledger").fetchone() == (20_000,)
        kinds = [boundary.kind for boundary in proxy.log]
    assert kinds.count(Kind.COPY_DONE) == 2
    assert kinds.count(Kind.COPY_FAIL) == 1


def test_pipelines_and_prepared_statements_pass(ledger: str, through: ReachProxy) -> None:
    """A pipeline is one point at its Sync; prepared statements are named by their text although only Bind is sent."""
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        with connection.pipeline():
            for key in range(500):
                connection.execute("insert into ledger values (%s, 1)", (key,))
            counted = connection.execute("select count(*) from ledger").fetchone()
        assert counted == (500,)
        for key in range(3):
            connection.execute("select id from ledger where id = %s", (key,), prepare=True)
    prepared = [boundary for boundary in proxy.log if boundary.statement.startswith("select id from ledger")]
    assert [(boundary.kind, boundary.statement) for boundary in prepared] == [
        (Kind.SYNC, "select id from ledger where id = $1")
    ] * 3
    assert rows(ledger) == [(key, 1) for key in range(500)]


def test_a_pipeline_larger_than_all_buffers_does_not_jam(ledger: str, through: ReachProxy) -> None:
    """While the client still sends, the server's answers flow: neither waits for the other for ever."""
    wide = "z" * 20_000
    with through(ledger) as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection, connection.pipeline():
        cursors = [connection.execute("select %s::text", (wide,)) for _ in range(1_000)]
        assert all(cursor.fetchone() == (wide,) for cursor in cursors)


def test_cancel_reaches_the_running_statement(ledger: str, through: ReachProxy) -> None:
    """A cancel comes on a connection of its own, ends the right statement, and is no boundary."""
    with (
        through(ledger) as (proxy, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(ledger, autocommit=True) as watcher,
    ):
        pid = connection.info.backend_pid

        def cancel() -> None:
            wait_until(
                lambda: (
                    watcher.execute(
                        "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s", (pid,)
                    ).fetchone()
                    == (True,)
                ),
                "the statement to run",
            )
            connection.cancel_safe(timeout=10)

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(errors.QueryCanceled):
            connection.execute("select pg_sleep(60)")
        canceller.join()
        assert {boundary.connection for boundary in proxy.log} == {1}


# Counting


def test_points_are_named_and_counted_the_same_in_two_runs(ledger: str, through: ReachProxy) -> None:
    """Equal runs have equal points: startup, each statement once whatever its protocol, terminate."""
    logs = []
    for key in (1, 2):
        with through(ledger) as (proxy, dsn):
            insert_and_commit(dsn, key=key)
            wait_until(lambda log=proxy.log: log[-1].kind is Kind.TERMINATE, "the client's goodbye")  # type: ignore[misc]
            logs.append(proxy.log)
    assert logs[0] == logs[1]
    assert [(boundary.nth, boundary.kind, boundary.statement) for boundary in logs[0]][1:] == [
        (2, Kind.QUERY, "begin"),
        (3, Kind.SYNC, "insert into ledger values ($1, 100)"),
        (4, Kind.QUERY, "commit"),
        (5, Kind.TERMINATE, ""),
    ]


def test_message_points_count_each_execute(ledger: str, through: ReachProxy) -> None:
    """With ``points="message"`` an Execute is a point of its own, also one that is cut after its answer."""
    on_boundary = once("insert", at.CUT_AFTER)
    with through(ledger, on_boundary, points="message") as (proxy, dsn):
        with pytest.raises(psycopg.OperationalError):
            insert_and_commit(dsn)
        assert [(fired.boundary.kind, fired.answer) for fired in proxy.fired] == [(Kind.EXECUTE, "INSERT 0 1")]
    assert rows(ledger) == []


def test_comments_and_white_space_are_left_out_of_the_name(ledger: str, through: ReachProxy) -> None:
    """A statement is recognised by its head, also below a comment."""
    with through(ledger) as (proxy, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("-- why\n /* and how */\n select\n\t 1")
    assert "select 1" in [boundary.statement for boundary in proxy.log]


# Faults


@pytest.mark.parametrize(("action", "expected"), [(at.CUT_BEFORE, []), (at.CUT_AFTER, [(1, 100)])])
def test_a_cut_at_commit_looks_the_same_and_leaves_opposite_truths(
    ledger: str, through: ReachProxy, action: Action, expected: list[tuple[int, int]]
) -> None:
    """Before: nothing is committed. After: it is, though the client only saw its connection break."""
    with through(ledger, once("commit", action)) as (proxy, dsn):
        with pytest.raises(psycopg.OperationalError) as caught:
            insert_and_commit(dsn)
        assert caught.value.sqlstate is None
        assert [fired.answer for fired in proxy.fired] == (["COMMIT"] if expected else [""])
    wait_until_quiet(ledger)
    assert rows(ledger) == expected


@pytest.mark.parametrize("arguments", [None, ()], ids=["simple", "extended"])
def test_an_error_before_a_statement_aborts_the_transaction_in_the_server(
    ledger: str, through: ReachProxy, arguments: tuple[()] | None
) -> None:
    """The client gets the SQLSTATE, the server holds the transaction failed, and nothing of it can be committed."""
    with (
        through(ledger, once("insert into ledger values (2", at.error_before("40001"))) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("begin")
        connection.execute("insert into ledger values (1, 100)")
        with pytest.raises(errors.SerializationFailure):
            connection.cursor(binary=arguments is not None).execute("insert into ledger values (2, 100)", arguments)
        assert connection.info.transaction_status.name == "INERROR"
        with pytest.raises(errors.InFailedSqlTransaction):
            connection.execute("select 1")
        assert connection.execute("commit").statusmessage == "ROLLBACK"
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)


@pytest.mark.parametrize("arguments", [None, ()], ids=["simple", "extended"])
def test_an_error_at_commit_rolls_back_and_leaves_the_session_idle(
    ledger: str, through: ReachProxy, arguments: tuple[()] | None
) -> None:
    """A failed COMMIT ends the transaction: the session is idle, its work undone, and it goes on."""
    with (
        through(ledger, once("commit", at.error_before("40001"))) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("begin")
        connection.execute("insert into ledger values (1, 100)")
        with pytest.raises(errors.SerializationFailure):
            connection.cursor(binary=arguments is not None).execute("commit", arguments)
        assert connection.info.transaction_status.name == "IDLE"
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)
    assert rows(ledger) == []


def test_an_error_in_a_pipeline_aborts_all_of_it(ledger: str, through: ReachProxy) -> None:
    """The unit up to the Sync fails as one; the connection is usable afterwards."""
    with (
        through(ledger, once("insert", at.error_before("40P01"))) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        with pytest.raises(errors.DeadlockDetected), connection.pipeline():
            for key in range(3):
                connection.execute("insert into ledger values (%s, 1)", (key,))
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)


def test_an_error_at_the_end_of_copy_takes_its_rows_back(ledger: str, through: ReachProxy) -> None:
    """CopyDone can fail like a statement: the SQLSTATE arrives, no row stays, the connection is usable."""

    def on_boundary(boundary: Boundary) -> Action:
        return at.error_before("40001") if boundary.kind is Kind.COPY_DONE else PASS

    with through(ledger, on_boundary) as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.cursor()
        with pytest.raises(errors.SerializationFailure), cursor.copy("copy ledger from stdin") as copy:
            copy.write_row((1, 1))
        assert connection.execute("select count(*) from ledger").fetchone() == (0,)


def test_a_rollback_and_a_goodbye_cannot_be_failed_with_an_error(ledger: str, through: ReachProxy) -> None:
    """What a server never answers with an error passes, and no fault is claimed."""
    with through(ledger, lambda b: PASS if b.can_fail else at.error_before("40001")) as (proxy, dsn):
        with psycopg.connect(dsn) as connection:
            connection.execute("select 1")
            connection.rollback()
        assert proxy.fired == []


def test_an_error_at_startup_refuses_the_connection(ledger: str, through: ReachProxy) -> None:
    """A connection can be refused with an SQLSTATE, as by a server that is full."""
    with through(ledger, lambda _: at.error_before("53300")) as (_, dsn), pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


@pytest.mark.parametrize("action", [at.CUT_BEFORE, at.CUT_AFTER, at.TERMINATE_BEFORE, at.TERMINATE_AFTER])
@pytest.mark.parametrize("kind", [Kind.STARTUP, Kind.TERMINATE])
def test_faults_at_the_ends_of_a_connection_end_it(
    ledger: str, through: ReachProxy, action: Action, kind: Kind
) -> None:
    """Startup and goodbye can be failed too; what was committed in between stays."""
    with through(ledger, lambda b: action if b.kind is kind else PASS) as (proxy, dsn):
        with contextlib.suppress(psycopg.OperationalError):
            insert_and_commit(dsn)
        wait_until(lambda: len(proxy.fired) == 1, "the fault")
    assert rows(ledger) == ([] if kind is Kind.STARTUP else [(1, 100)])


@pytest.mark.parametrize(
    ("action", "expected"), [(at.TERMINATE_BEFORE, []), (at.TERMINATE_AFTER, [(1, 100)])], ids=["before", "after"]
)
def test_a_terminated_backend_says_so(
    ledger: str, through: ReachProxy, action: Action, expected: list[tuple[int, int]]
) -> None:
    """The client hears 57P01 at its COMMIT, whether or not that was carried out."""
    with through(ledger, once("commit", action)) as (_, dsn), pytest.raises(errors.AdminShutdown):
        insert_and_commit(dsn)
    assert rows(ledger) == expected


@pytest.mark.parametrize(
    ("action", "expected"),
    [(at.kill_client_before(), []), (at.kill_client_after(), [(1, 100)])],
    ids=["before", "after"],
)
def test_a_client_killed_at_commit_dies_on_the_right_side_of_it(
    ledger: str, through: ReachProxy, action: Action, expected: list[tuple[int, int]]
) -> None:
    """SIGKILL before the message is forwarded, or after the server's answer and before the client has it."""
    with through(ledger, once("commit", action)) as (proxy, dsn):
        ended = run_limited(forked(insert_and_commit), dsn, in_child=proxy.close_inherited)
    wait_until_quiet(ledger)
    assert (ended.code, rows(ledger)) == (-signal.SIGKILL, expected)


def test_a_delay_holds_the_statement_back(ledger: str, through: ReachProxy) -> None:
    """The message is forwarded after the pause, not lost."""
    with through(ledger, once("commit", at.delay(0.2))) as (_, dsn):
        began = time.monotonic()
        insert_and_commit(dsn)
        assert time.monotonic() - began >= 0.2
    assert rows(ledger) == [(1, 100)]


def test_the_answers_of_earlier_units_of_a_pipeline_are_not_withheld(ledger: str, through: ReachProxy) -> None:
    """A cut after the second of two Syncs in flight keeps back only the second one's answer; both are committed."""
    with through(ledger, once("insert into ledger values ($1, 2)", at.CUT_AFTER)) as (_, dsn):
        first: list[int] = []
        with (
            pytest.raises(psycopg.OperationalError),
            psycopg.connect(dsn, autocommit=True) as connection,
            connection.pipeline() as pipeline,
        ):
            cursor = connection.execute("insert into ledger values (%s, 1) returning id", (1,))
            pipeline.sync()
            first += [row[0] for row in cursor]
            connection.execute("insert into ledger values (%s, 2)", (2,))
            pipeline.sync()
        assert first == [1]
    assert rows(ledger) == [(1, 1), (2, 2)]


def test_leaving_the_proxy_frees_threads_and_socket(ledger: str, through: ReachProxy, tmp_path: Path) -> None:
    """Nothing stays behind, also with a client still connected in the middle of a statement."""
    with through(ledger) as (_, dsn):
        connection = psycopg.connect(dsn)
        assert threading.active_count() > 1
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    connection.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pgonce-proxy")]
    assert list((tmp_path / "s").iterdir()) == []
    wait_until_quiet(ledger)


def test_a_broken_callback_is_raised_on_leaving(ledger: str, through: ReachProxy) -> None:
    """A mistake in the test's own callback turns the test red instead of looking like a fault."""

    def broken(_: Boundary) -> Action:
        raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        through(ledger, broken) as (_, dsn),
        contextlib.suppress(psycopg.OperationalError),
    ):
        psycopg.connect(dsn)


def test_the_proxy_refuses_to_kill_its_own_process(ledger: str, through: ReachProxy) -> None:
    """A client in the proxy's process is a mistake of the test, named as one."""
    with (
        pytest.raises(ConfigurationError, match="own process"),
        through(ledger, once("commit", at.kill_client_before())) as (_, dsn),
        contextlib.suppress(psycopg.OperationalError),
    ):
        insert_and_commit(dsn)


# The harness


def settle(dsn: str) -> int:
    """Apply three rows safely: each is claimed by its key in the effect's own transaction."""
    for key in range(3):
        with psycopg.connect(dsn) as connection:
            connection.execute("insert into ledger values (%s, 100) on conflict do nothing", (key,))
    return 0


def settle_in_two_transactions(dsn: str) -> int:
    """Do what a careless job does: the effect in one transaction, the note that it is done in another."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.execute("select from ledger where id = 1").rowcount == 0:
            connection.execute("update total set cents = cents + 100")
            connection.execute("insert into ledger values (1, 100)")
    return 0


@pytest.fixture
def loop(make_database: Callable[..., str], tmp_path: Path) -> Callable[[Callable[[str], int]], Summary]:
    """Give a function that runs the whole fault loop over a job and returns its summary."""

    def make_state() -> str:
        dsn = make_database()
        with psycopg.connect(dsn) as connection:
            connection.execute("create table ledger (id integer primary key, cents bigint not null)")
            connection.execute("create table total (cents bigint not null)")
            connection.execute("insert into total values (0)")
        return dsn

    def fingerprint(dsn: str) -> object:
        with psycopg.connect(dsn) as connection:
            return rows(dsn), connection.execute("select cents from total").fetchall()

    def run(job: Callable[[str], int], faults: tuple[Fault, ...] = FAULTS) -> Summary:
        return FaultLoop(
            make_state=make_state,
            command=forked(job),
            check=lambda _: None,
            fingerprint=fingerprint,
            folder=tmp_path / "s",
            faults=faults,
            sample=4,
        ).run()

    return run


def test_the_loop_is_green_for_a_safe_job_and_saw_both_ends_of_a_doubtful_commit(
    loop: Callable[[Callable[[str], int]], Summary],
) -> None:
    """A job that is safe to run again passes every fault at every COMMIT, and both outcomes were reached."""
    summary = loop(settle)
    summary.assert_green()
    assert not summary.unreached
    assert summary.sometimes["commit in doubt, committed"] >= 3
    assert summary.sometimes["commit in doubt, not committed"] >= 3
    assert set(summary.tried) == {fault.name for fault in FAULTS}


def test_the_loop_is_red_for_a_job_that_is_not_safe(loop: Callable[..., Summary]) -> None:
    """The planted bug (effect and note in two transactions) is found where it is: between the two."""
    summary = loop(settle_in_two_transactions, (CUT_BEFORE, ERROR_40001))
    assert {failure.boundary.statement for failure in summary.failures} == {"insert into ledger values (1, 100)"}
    with pytest.raises(AssertionError, match="broke a promise"):
        summary.assert_green()


def test_a_program_is_killed_at_the_instant_its_progress_shows(ledger: str) -> None:
    """kill_at looks at the database, not the clock; the whole process group is gone."""
    script = (
        "import psycopg, sys\n"
        "with psycopg.connect(sys.argv[1], autocommit=True) as connection:\n"
        "    for key in range(1_000_000):\n"
        "        connection.execute('insert into ledger values (%s, 1)', (key,))\n"
    )
    with psycopg.connect(ledger, autocommit=True) as watcher:
        ended = kill_at(
            [sys.executable, "-c", script, ledger],
            lambda: watcher.execute("select from ledger where id = 20").rowcount == 1,
        )
    assert ended.code == -signal.SIGKILL
    wait_until_quiet(ledger)
    assert len(rows(ledger)) >= 20


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The time limit kills the process group: also what the program itself has started."""
    note = tmp_path / "pid"
    command = f"sleep 600 & echo $! > {note}; wait"
    ended = run_limited(program(lambda _: ["sh", "-c", command]), "", limit_s=1.0)
    assert ended == Ended(-signal.SIGKILL, "", is_timed_out=True)
    pid = int(note.read_text())
    wait_until(lambda: not _is_running(pid), "the child to be gone")


def _is_running(pid: int) -> bool:
    """Say whether a process runs; one that is dead but not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_blocked_session_is_recognised(ledger: str) -> None:
    """The one that waits for a lock is found by what the server says of it."""
    with (
        psycopg.connect(ledger) as holder,
        psycopg.connect(ledger) as waiter,
        psycopg.connect(ledger, autocommit=True) as watcher,
    ):
        holder.execute("insert into ledger values (1, 1)")
        blocked = threading.Thread(
            target=waiter.execute, args=("insert into ledger values (1, 2) on conflict do nothing",)
        )
        blocked.start()
        assert wait_until_blocked(watcher) == waiter.info.backend_pid
        holder.commit()
        blocked.join()
