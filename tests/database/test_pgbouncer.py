"""Behind PgBouncer in transaction mode: each transaction may meet another backend, and nothing may leak into it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from conftest import make_clerk
from database.pooling import PROGRAM, Pooler, pooler
from faults.harness import kill_at
from migration.installing import COMMAND_S_MAX, argv, ended, environment, execute, started
from pgonce import run
from pgonce.api import admin
from pgonce.model.limits import Limits

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (apt-get install pgbouncer)")

ROWS = 600
CHUNK_ROWS = 20
EFFECT = """
update account as a set balance = a.balance + c.cents
from (select account, sum(amount_cents) as cents from chunk group by account) as c
where a.id = c.account
"""


@pytest.fixture
def pooled(make_database: Callable[[str], str], template: str) -> Iterator[Pooler]:
    """A pooler before a fresh database with the schema, and accounts for the effect."""
    with pooler(make_database(template)) as made:
        execute(
            made.direct,
            "create table account (id text primary key, balance bigint not null)",
            "insert into account values ('a', 0), ('b', 0), ('c', 0)",
        )
        yield made


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with an input and an effect."""
    write_input(tmp_path / "in.csv", "e")
    (tmp_path / "effect.sql").write_text(EFFECT)
    return tmp_path


def write_input(path: Path, prefix: str) -> None:
    """Write rows of 1 to ROWS cents for three accounts in turn."""
    lines = [f"{prefix}{number},{number},{'abc'[number % 3]}" for number in range(1, ROWS + 1)]
    path.write_text("\n".join(["id,amount,account", *lines, ""]))


TOTAL = ROWS * (ROWS + 1) // 2


def command(dsn: str, folder: Path, *options: str, name: str = "in.csv", job: str = "pay") -> list[str]:
    """Give the command line of a run with an effect and small chunks."""
    return argv(
        *("run", str(folder / name), "--job", job, "--key", "id", "--amount", "amount", "--dsn", dsn, "--json"),
        *("--effect", str(folder / "effect.sql"), "--chunk-rows", str(CHUNK_ROWS), *options),
    )


def totals(dsn: str) -> tuple[object, ...]:
    """Read events, the ledger's cents, and the sum of all balances."""
    return execute(
        dsn,
        "select (select count(*) from pgonce.event where status = 'completed'),"
        " (select sum(amount_cents)::bigint from pgonce.effect), (select sum(balance)::bigint from account)",
    )[0]


def sessions_are_clean(dsn: str) -> None:
    """Every server connection of the pool has its defaults: no setting, no temporary table, no lock is left in it."""
    seen = set()
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        for connection in (one, other):
            row = connection.execute(
                "select pg_backend_pid(), array(select name from pg_settings where setting <> reset_val"
                " and source = 'session' and name not in ('application_name', 'client_encoding')),"
                " (select count(*) from pg_class where relpersistence = 't'),"
                " (select count(*) from pg_locks where locktype = 'advisory'),"
                " (select count(*) from pg_prepared_statements), (select count(*) from pg_cursors where is_holdable)"
            ).fetchone()
            assert row is not None
            seen.add(row[0])
            assert row[1:] == ([], 0, 0, 0, 0)
    assert len(seen) == 2


def test_the_pooler_is_recognised(pooled: Pooler) -> None:
    """The backend's pid is not the one the client was told: no backend is taken for the owner's."""
    for dsn, is_pooled in ((pooled.dsn, True), (pooled.direct, False)):
        clerk = make_clerk(dsn)
        clerk.do(lambda transaction: transaction.row("session_identity"))
        assert (clerk.session.backend_pid is None) == is_pooled
        clerk.session.close()
    assert [one.check for one in admin.doctor(pooled.dsn).findings if one.check == "pooler"] == ["pooler"]
    assert not [one for one in admin.doctor(pooled.direct).findings if one.check == "pooler"]


def test_init_through_the_pooler(make_database: Callable[[], str]) -> None:
    """The migration's lock lives in its transaction, so that no pooled session keeps it."""
    with pooler(make_database()) as made:
        assert admin.init(made.dsn).applied
        assert admin.migrate(made.dsn).applied == ()
        assert execute(made.direct, "select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]


@pytest.mark.parametrize(("checkpoint", "workers"), [("item", 1), ("chunk", 1), ("all", 1), ("chunk", 2)])
@pytest.mark.parametrize("with_effect", [False, True], ids=["ledger", "effect"])
def test_a_job_runs_and_runs_again(
    pooled: Pooler, files: Path, checkpoint: str, workers: int, with_effect: bool
) -> None:
    """Twice the same command: once applied, with every checkpoint; the sessions are clean afterwards."""
    for _ in range(2):
        report = run(
            files / "in.csv",
            job="pay",
            key="id",
            amount="amount",
            dsn=pooled.dsn,
            effect=files / "effect.sql" if with_effect else None,
            limits=Limits(checkpoint=checkpoint, chunk_rows=CHUNK_ROWS, workers=workers),
        )
        assert report.exit_code == 0
    assert totals(pooled.direct) == (ROWS, TOTAL, TOTAL if with_effect else 0)
    sessions_are_clean(pooled.dsn)


@pytest.mark.parametrize("options", [(), ("--take-over",)], ids=["again", "take over"])
def test_a_killed_run_is_resumed_through_the_pooler(pooled: Pooler, files: Path, options: tuple[str, ...]) -> None:
    """SIGKILL after some committed chunks; the same command goes on at once, for its process is seen to be gone."""
    with psycopg.connect(pooled.direct, autocommit=True) as watcher:

        def moved() -> bool:
            return watcher.execute("select from pgonce.start where chunks >= 3").rowcount > 0

        killed = kill_at(command(pooled.dsn, files), moved)
        assert killed.code == -9, killed.output
    assert execute(pooled.direct, "select ended_at is null, backend_pid from pgonce.start") == [(True, None)]
    done = subprocess.run(
        command(pooled.dsn, files, *options), capture_output=True, text=True, timeout=COMMAND_S_MAX, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert totals(pooled.direct) == (ROWS, TOTAL, TOTAL)
    assert execute(pooled.direct, "select epoch, ended_how from pgonce.start where epoch = 2") == [(2, "finished")]
    sessions_are_clean(pooled.dsn)


def test_a_silent_owner_elsewhere_is_waited_for(pooled: Pooler, files: Path) -> None:
    """An owner on another host cannot be looked at: exit 76 with when it counts as gone, and then it does."""
    write_input(files / "in.csv", "e")
    run(files / "in.csv", job="pay", key="id", amount="amount", effect=files / "effect.sql", dsn=pooled.dsn)
    reopen = (
        "update pgonce.start set ended_at = null, owner = 'somebody@elsewhere:1', moved_at = clock_timestamp()",
        "update pgonce.run set finished_at = null, outcome = null",
    )
    execute(pooled.direct, *reopen)
    refused = subprocess.run(
        command(pooled.dsn, files), capture_output=True, text=True, timeout=COMMAND_S_MAX, env=environment()
    )
    assert refused.returncode == 76
    assert "somebody@elsewhere:1" in refused.stderr
    assert "gone after 120 s without a move" in refused.stderr
    execute(pooled.direct, "update pgonce.start set moved_at = clock_timestamp() - interval '121 s'")
    done = subprocess.run(
        command(pooled.dsn, files), capture_output=True, text=True, timeout=COMMAND_S_MAX, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert totals(pooled.direct) == (ROWS, TOTAL, TOTAL)


def test_two_jobs_at_once_share_the_pool(pooled: Pooler, files: Path) -> None:
    """Different jobs over their own inputs, on two server connections between them."""
    write_input(files / "two.csv", "f")
    commands = (command(pooled.dsn, files), command(pooled.dsn, files, name="two.csv", job="refund"))
    with started(*commands) as running:
        done = ended(running)
    assert [code for code, *_ in done] == [0, 0], done
    assert [json.loads(out)["exit_code"] for _, out, _ in done] == [0, 0]
    assert totals(pooled.direct) == (2 * ROWS, 2 * TOTAL, 2 * TOTAL)
    sessions_are_clean(pooled.dsn)


def test_a_temporary_table_of_one_job_does_not_reach_another(pooled: Pooler, files: Path) -> None:
    """E1: on the same server connection, the rows of the job before would be booked once more, and these not at all."""
    (files / "effect.sql").write_text(
        "create temp table if not exists summed as"
        " select account, sum(amount_cents) as cents from chunk group by account;"
        " update account as a set balance = a.balance + s.cents from summed as s where a.id = s.account"
    )
    write_input(files / "two.csv", "f")
    for name, job in (("in.csv", "pay"), ("two.csv", "refund")):
        done = subprocess.run(
            command(pooled.dsn, files, name=name, job=job),
            capture_output=True, text=True, timeout=COMMAND_S_MAX, env=environment(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert totals(pooled.direct) == (2 * ROWS, 2 * TOTAL, 2 * TOTAL)
    sessions_are_clean(pooled.dsn)
