"""The schema is the sum of its migrations, under any name, however it is made and whatever interrupts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from conftest import make_clerk
from faults.harness import kill_at, wait_until, wait_until_quiet
from faults.ledger import once, proxies_in
from migration.installing import COMMAND_S_MAX, ODD_NAMES, argv, described, ended, execute, pgonce, psql, started
from pgonce.api import admin
from pgonce.crashtest import boundary as at
from pgonce.db import drift
from pgonce.db import schema as schemas
from pgonce.db.statements import quote_identifier
from pgonce.errors import ConfigurationError, SchemaMismatch
from servers_plugin import chosen_binaries

PROCESSES = 4


def test_the_expected_schema_is_what_the_migrations_make(database: str) -> None:
    """After a migration was added: run tests/migration/write_expected_schema.py and look at what changed."""
    assert list(described(database)) == list(drift.expected())


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_the_schema_is_the_same_under_any_name(empty_database: str, schema: str) -> None:
    """Blanks, quotes, capitals, non-ASCII letters and the longest name make the same tables."""
    change = admin.init(empty_database, schema=schema)
    assert (change.before, change.after) == (0, schemas.newest())
    assert described(empty_database, schema) == drift.expected()
    assert execute(
        empty_database, "select nspname from pg_namespace where nspname !~ '^(pg_|information_schema|public)'"
    ) == [(schema,)]


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_the_printed_sql_makes_what_migrate_makes_and_leaves_it_nothing_to_do(
    make_database: Callable[[], str], schema: str
) -> None:
    """psql applies it in one transaction; afterwards the same objects stand there, and the same record of it."""
    by_psql, by_migrate = make_database(), make_database()
    applied = psql(chosen_binaries().bin_dir, by_psql, admin.install_sql(schema))
    assert applied.returncode == 0, applied.stderr
    admin.init(by_migrate, schema=schema)
    record = f"select version, name, sha256 from {quote_identifier(schema)}.migration order by version"
    assert described(by_psql, schema) == described(by_migrate, schema)
    assert execute(by_psql, record) == execute(by_migrate, record)
    for change in (admin.migrate(by_psql, schema=schema), admin.init(by_psql, schema=schema)):
        assert (change.applied, change.before, change.after) == ((), schemas.newest(), schemas.newest())


def test_the_printed_sql_fails_as_a_whole_where_the_schema_is_there(database: str) -> None:
    """Applying it twice is refused and changes nothing."""
    before = described(database)
    assert psql(chosen_binaries().bin_dir, database, admin.install_sql()).returncode != 0
    assert described(database) == before


def test_sql_since_the_newest_version_is_empty_and_an_unknown_one_is_refused() -> None:
    """Who applied version N by hand asks for what came after N."""
    assert admin.install_sql(since=schemas.newest()) == ""
    with pytest.raises(ConfigurationError, match="no schema version 99"):
        admin.install_sql(since=99)


def test_migrate_without_a_schema_says_init_and_makes_nothing(empty_database: str) -> None:
    """Nobody's database is filled by surprise."""
    done = pgonce("db", "migrate", "--dsn", empty_database)
    assert done.returncode == 78
    assert "pgonce db init first" in done.stderr
    assert described(empty_database) == ()


def test_init_on_a_current_schema_says_so(database: str) -> None:
    """It is safe to run again and exits 0."""
    done = pgonce("db", "init", "--dsn", database)
    assert (done.returncode, done.stdout) == (0, "schema 'pgonce' is there at version 2; there was nothing to do\n")


@pytest.mark.parametrize("command", ["init", "migrate", "doctor"])
def test_a_newer_schema_is_refused(database: str, command: str) -> None:
    """An older pgonce leaves a newer schema alone: exit 78."""
    execute(database, "insert into pgonce.migration (version, name, sha256) values (99, 'later', 'x')")
    done = pgonce("db", command, "--dsn", database)
    assert done.returncode == 78
    assert "newer than this pgonce knows" in done.stderr


def test_an_edited_migration_is_refused(database: str) -> None:
    """A schema made by another build under the same number is not taken for ours."""
    execute(database, "update pgonce.migration set sha256 = 'x' where version = 1")
    with pytest.raises(SchemaMismatch, match="migration 1 was applied with other SQL"):
        admin.migrate(database)


def test_of_processes_that_init_at_once_one_applies_and_the_others_find_it_done(empty_database: str) -> None:
    """All wait for the lock, which is held here until every one of them is waiting."""
    init = argv("db", "init", "--dsn", empty_database, "--json")
    with (
        psycopg.connect(empty_database) as holder,
        psycopg.connect(empty_database, autocommit=True) as watcher,
        started(*[init] * PROCESSES) as running,
    ):
        holder.execute("select pg_advisory_xact_lock(hashtextextended('pgonce', 706366))")
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_until(lambda: watcher.execute(waiting).fetchone() == (PROCESSES,), "all waiting", limit_s=COMMAND_S_MAX)
        holder.rollback()
        done = ended(running)
    assert [code for code, *_ in done] == [0] * PROCESSES, done
    applied = sorted(json.loads(out)["applied"] for _, out, _ in done)
    assert applied == [[]] * (PROCESSES - 1) + [["0001 initial", "0002 set_reference"]]
    assert described(empty_database) == drift.expected()


def test_a_command_killed_inside_a_migration_leaves_nothing_half_made(empty_database: str) -> None:
    """It is held in the middle of the SQL, killed, and started again."""
    execute(
        empty_database,
        """create function public.hold() returns event_trigger language plpgsql as $body$
        begin
            if exists (select 1 from pg_event_trigger_ddl_commands() where object_identity = 'pgonce.effect') then
                perform pg_advisory_xact_lock(1);
            end if;
        end $body$""",
        "create event trigger hold on ddl_command_end execute function public.hold()",
    )
    with psycopg.connect(empty_database) as holder, psycopg.connect(empty_database, autocommit=True) as watcher:
        holder.execute("select pg_advisory_xact_lock(1)")
        inside = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        killed = kill_at(
            argv("db", "init", "--dsn", empty_database), lambda: watcher.execute(inside).fetchone() == (1,)
        )
        assert killed.code == -9
        wait_until(lambda: watcher.execute(inside).fetchone() == (0,), "the server has noticed the killed client")
        holder.rollback()
    wait_until_quiet(empty_database)
    assert execute(empty_database, "select 1 from pg_namespace where nspname = 'pgonce'") == []
    execute(empty_database, "drop event trigger hold", "drop function public.hold()")
    assert admin.init(empty_database).applied == ("0001 initial", "0002 set_reference")
    assert described(empty_database) == drift.expected()


@pytest.mark.parametrize("action", [at.CUT_BEFORE, at.CUT_AFTER], ids=["not committed", "committed"])
def test_a_commit_in_doubt_is_done_again_safely(empty_database: str, tmp_path: Path, action: at.Action) -> None:
    """The connection breaks at the COMMIT of the migrations, before or after it took place."""
    with proxies_in(tmp_path)(empty_database, once("commit", action)) as (proxy, dsn):
        change = admin.init(dsn)
        assert len(proxy.fired) == 1
    assert change.after == schemas.newest()
    assert described(empty_database) == drift.expected()
    assert execute(empty_database, "select count(*) from pgonce.migration") == [(len(schemas.migrations()),)]


@pytest.mark.parametrize("schema", ["", "pg_mine", "x" * 64, "é" * 32, "a\0b"])
def test_names_that_postgresql_would_change_or_refuse_are_refused_first(schema: str) -> None:
    """A name that is cut off silently would be another schema."""
    with pytest.raises(ConfigurationError, match="cannot be a schema name"):
        admin.install_sql(schema)


def test_a_schema_of_somebody_else_is_not_taken(empty_database: str) -> None:
    """Tables of the same names that pgonce did not make stop the migration, and stay as they are."""
    execute(empty_database, "create schema pgonce", "create table pgonce.event (theirs integer)")
    with pytest.raises(ConfigurationError, match="already exists"):
        admin.init(empty_database)
    assert [line for line in described(empty_database) if not line.startswith("index")] == [
        "column event.theirs: integer",
        "table event: ordinary logged",
    ]


def test_two_schemas_in_one_database_do_not_know_of_each_other(empty_database: str) -> None:
    """Each has its own version, and a clerk of one sees nothing of the other."""
    admin.init(empty_database, schema="one")
    with pytest.raises(SchemaMismatch, match="no schema 'two'"):
        admin.migrate(empty_database, schema="two")
    admin.init(empty_database, schema="two")
    clerk = make_clerk(empty_database, "two")
    assert clerk.do(schemas.version, commit=False) == schemas.newest()
    clerk.session.close()


LATER = schemas.Migration(3, "later", "create table pgonce.later (id integer not null);\n")


def with_another(monkeypatch: pytest.MonkeyPatch, another: schemas.Migration) -> None:
    """Give this process a pgonce that has one migration more."""
    known = schemas.migrations()
    assert another.version == len(known) + 1, "number it after the last one"
    monkeypatch.setattr(schemas, "migrations", lambda: (*known, another))


def test_an_older_schema_is_brought_up_to_date_by_migrate_alone(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs and init refuse it and say so; migrate applies what is missing, and nothing else."""
    with_another(monkeypatch, LATER)
    clerk = make_clerk(database)
    with pytest.raises(SchemaMismatch, match="the schema is at version 2, this pgonce needs 3: run pgonce db migrate"):
        clerk.do(schemas.require_current, commit=False)
    with pytest.raises(SchemaMismatch, match="run pgonce db migrate"):
        admin.init(database)
    change = admin.migrate(database)
    assert (change.before, change.after, change.applied) == (2, 3, ("0003 later",))
    clerk.do(schemas.require_current, commit=False)
    clerk.session.close()
    assert admin.migrate(database).applied == ()


def test_a_migration_that_fails_leaves_the_version_before_it(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first statement is undone with its second, and no record stays of it."""
    with_another(monkeypatch, schemas.Migration(3, "broken", LATER.text + "create table pgonce.event (id integer);\n"))
    with pytest.raises(ConfigurationError, match='relation "event" already exists'):
        admin.migrate(database)
    assert described(database) == drift.expected()
    assert execute(database, "select max(version) from pgonce.migration") == [(2,)]


def test_sql_since_a_version_is_what_migrate_would_still_do(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applied by psql, it leaves migrate nothing to do."""
    with_another(monkeypatch, LATER)
    applied = psql(chosen_binaries().bin_dir, database, admin.install_sql(since=2))
    assert applied.returncode == 0, applied.stderr
    assert admin.migrate(database).before == 3


def test_a_database_of_version_1_with_rows_in_it_is_brought_up_to_date(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored events and effects stay as they are; the new reference and guards hold for them, the old data included."""
    with monkeypatch.context() as patch:
        first = schemas.migrations()[:1]
        patch.setattr(schemas, "migrations", lambda: first)
        assert admin.init(empty_database).reference == "row"
    execute(
        empty_database,
        "insert into pgonce.event (amount_cents, run_id, line, epoch, job, source, event_id, status, payload)"
        " select n, 1, n, 1, 'pay', '', n::text, case when n < 3 then 'completed' else 'failed' end, '[]'"
        " from generate_series(1, 3) as n",
        "insert into pgonce.effect select amount_cents, job, source, event_id from pgonce.event where event_id = '1'",
    )
    rows = ("select * from pgonce.event order by event_id", "select * from pgonce.effect")
    before = [execute(empty_database, query) for query in rows]
    change = admin.migrate(empty_database)
    assert (change.before, change.after, change.reference) == (1, schemas.newest(), "set")
    assert [execute(empty_database, query) for query in rows] == before
    assert described(empty_database) == drift.expected()
    effect = "insert into pgonce.effect (amount_cents, job, source, event_id) values "
    for wrong in ("(2, 'pay', '', 'ghost')", "(3, 'pay', '', '2')", "(3, 'pay', '', '3')"):
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            execute(empty_database, effect + wrong)
    execute(empty_database, effect + "(2, 'pay', '', '2')")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        execute(empty_database, "delete from pgonce.event")
