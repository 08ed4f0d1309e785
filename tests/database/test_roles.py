"""A role that owns only its schema is enough, and what is set for a role or stands in its path changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from conftest import make_clerk
from faults.harness import wait_until
from migration.installing import COMMAND_S_MAX, argv, described, ended, execute, started
from pgonce import run
from pgonce.api import admin
from pgonce.db import drift
from pgonce.engine import counting, doctor
from pgonce.errors import ConfigurationError
from pgonce.model.limits import Limits

ROWS = 200
TOTAL = ROWS * (ROWS + 1) // 2
SCHEMA = "Own Schema"
EFFECT = """
update account as a set balance = a.balance + c.cents
from (select account, sum(amount_cents) as cents from chunk group by account) as c
where a.id = c.account
"""

BLOCKED = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
)

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Narrow:
    """A role that may do nothing but connect and own its schema; ``admin`` is the dsn of the database's owner."""

    dsn: str
    admin: str
    role: str


@pytest.fixture
def roles(empty_database: str) -> Iterator[Callable[[], str]]:
    """Give a maker of login roles without any right, which are dropped after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(f"{conninfo_to_dict(empty_database)['dbname']}_role_{next(_numbers)}")
        execute(empty_database, f"create role {made[-1]} login nosuperuser nocreatedb nocreaterole")
        return made[-1]

    yield make
    for role in made:
        execute(empty_database, f"drop owned by {role} cascade", f"drop role {role}")


@pytest.fixture
def narrow(empty_database: str, roles: Callable[[], str]) -> Narrow:
    """A role with its own schema, and a table of accounts in it, where it may neither create schemas nor use TEMP."""
    role = roles()
    database = conninfo_to_dict(empty_database)["dbname"]
    execute(
        empty_database,
        f"revoke all on database {database} from public",
        f"grant connect on database {database} to {role}",
        "revoke all on schema public from public",
        f'create schema "{SCHEMA}" authorization {role}',
        f'alter role {role} in database {database} set search_path = "{SCHEMA}"',
    )
    dsn = make_conninfo(empty_database, user=role)
    make_accounts(dsn, f'"{SCHEMA}".')
    return Narrow(dsn, empty_database, role)


def make_accounts(dsn: str, qualifier: str = "") -> None:
    """Make three accounts with nothing on them."""
    execute(
        dsn,
        f"create table {qualifier}account (id text primary key, balance bigint not null)",
        f"insert into {qualifier}account values ('a', 0), ('b', 0), ('c', 0)",
    )


def write_input(path: Path, prefix: str = "e") -> Path:
    """Write rows of 1 to ROWS cents for three accounts in turn."""
    lines = [f"{prefix}{number},{number},{'abc'[number % 3]}" for number in range(1, ROWS + 1)]
    path.write_text("\n".join(["id,amount,account", *lines, ""]))
    return path


def write_effect(path: Path, text: str = EFFECT) -> Path:
    """Write an effect."""
    path.write_text(text)
    return path


def test_the_role_has_no_right_beside_its_schema(narrow: Narrow) -> None:
    """The premise of the tests below: it may not create a schema, nor a temporary table."""
    for forbidden in (
        "create schema more",
        "create temporary table t (id integer)",
        "create table public.t (id integer)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(narrow.dsn, forbidden)


def test_a_role_that_may_not_create_the_schema_is_told_what_to_ask_for(narrow: Narrow) -> None:
    """The statement that its owner has to run once stands in the message."""
    with pytest.raises(ConfigurationError, match='create schema "other" authorization ROLE'):
        admin.init(narrow.dsn, schema="other")


@pytest.mark.parametrize("checkpoint", ["item", "chunk", "all"])
def test_a_role_that_owns_only_its_schema_runs_everything(narrow: Narrow, tmp_path: Path, checkpoint: str) -> None:
    """Install, run with an effect, run again, doctor: all without CREATE, TEMP, or a superuser's rights."""
    assert admin.init(narrow.dsn, schema=SCHEMA).applied
    assert described(narrow.dsn, SCHEMA) != ()
    for number in range(2):
        report = run(
            write_input(tmp_path / "in.csv"),
            job="pay",
            key="id",
            amount="amount",
            effect=write_effect(tmp_path / "effect.sql"),
            verify=write_effect(tmp_path / "verify.sql", "select 1 from chunk where amount_cents > 1000"),
            dsn=narrow.dsn,
            schema=SCHEMA,
            limits=Limits(checkpoint=checkpoint, chunk_rows=30),
        )
        assert (report.exit_code, report.shortcut) == (0, number == 1)
        assert execute(narrow.dsn, "select sum(balance)::bigint from account") == [(TOTAL,)]
    assert execute(narrow.dsn, "select to_regclass('chunk')") == [(None,)]
    diagnosis = admin.doctor(narrow.dsn, schema=SCHEMA)
    assert {one.check for one in diagnosis.findings} <= {"temporary", "setting"}
    assert "temporary" in {one.check for one in diagnosis.findings}
    assert diagnosis.clean


def test_jobs_without_temp_wait_for_each_other_and_do_not_deadlock(narrow: Narrow, tmp_path: Path) -> None:
    """Both need the one table `chunk`: the second waits to create it until the first has dropped it and committed."""
    admin.init(narrow.dsn, schema=SCHEMA)
    effect = write_effect(tmp_path / "effect.sql")
    commands = [
        argv(
            *("run", str(write_input(tmp_path / f"{job}.csv", job)), "--job", job, "--key", "id"),
            *("--amount", "amount", "--effect", str(effect), "--chunk-rows", "10", "--dsn", narrow.dsn),
            *("--schema", SCHEMA, "--json"),
        )
        for job in ("pay", "refund")
    ]
    with (
        psycopg.connect(narrow.admin) as holder,
        psycopg.connect(narrow.admin, autocommit=True) as watcher,
    ):
        holder.execute(f'select from "{SCHEMA}".account for update')
        with started(*commands) as running:
            wait_until(lambda: watcher.execute(BLOCKED).fetchone() == (2,), "both waiting", limit_s=COMMAND_S_MAX)
            holder.rollback()
            done = ended(running)
    assert [code for code, *_ in done] == [0, 0], done
    assert execute(narrow.dsn, "select sum(balance)::bigint from account") == [(2 * TOTAL,)]
    assert execute(narrow.dsn, f'select count(*) from "{SCHEMA}".event where attempts > 1') == [(0,)]


def test_a_relation_chunk_of_the_user_is_never_taken_for_ours(narrow: Narrow, tmp_path: Path) -> None:
    """Without TEMP it stands before ours in the path, and the run is refused; with TEMP ours stands before it."""
    admin.init(narrow.dsn, schema="Own Schema")
    execute(narrow.admin, f"create schema theirs authorization {narrow.role}")
    execute(narrow.dsn, "create table theirs.chunk (account text, amount_cents bigint)")
    execute(
        narrow.admin,
        "insert into theirs.chunk values ('a', 1000000)",
        f"alter role {narrow.role} in database {conninfo_to_dict(narrow.dsn)['dbname']}"
        f' set search_path = theirs, "{SCHEMA}"',
    )
    options = {"job": "pay", "key": "id", "amount": "amount", "dsn": narrow.dsn, "schema": SCHEMA}
    source, effect = write_input(tmp_path / "in.csv"), write_effect(tmp_path / "effect.sql")
    with pytest.raises(ConfigurationError, match='a relation "chunk" in schema theirs'):
        run(source, effect=effect, **options)
    assert execute(narrow.dsn, "select sum(balance)::bigint from account") == [(0,)]
    execute(narrow.admin, f"grant temp on database {conninfo_to_dict(narrow.dsn)['dbname']} to {narrow.role}")
    assert run(source, effect=effect, **options).exit_code == 0
    assert execute(narrow.dsn, "select sum(balance)::bigint from account") == [(TOTAL,)]


def test_an_owner_of_another_role_is_seen_to_live(narrow: Narrow, roles: Callable[[], str]) -> None:
    """Another role's backend shows its pid and hides its start: it counts as alive, and as gone once the pid is."""
    other = roles()
    database = conninfo_to_dict(narrow.dsn)["dbname"]
    execute(narrow.admin, f"grant connect on database {database} to {other}")
    admin.init(narrow.dsn, schema=SCHEMA)
    clerk = make_clerk(narrow.dsn, SCHEMA)
    with psycopg.connect(make_conninfo(narrow.admin, user=other), autocommit=True) as owner:
        row = owner.execute("select pid, backend_start from pg_stat_activity where pid = pg_backend_pid()").fetchone()
        assert row is not None
        hidden = "select backend_start from pg_stat_activity where pid = %s"
        with psycopg.connect(narrow.dsn) as ours:
            assert ours.execute(hidden, (row[0],)).fetchone() == (None,)
        looked = lambda: clerk.do(  # noqa: E731
            lambda transaction: transaction.row("backend_alive", pid=row[0], started=row[1]), commit=False
        )
        assert looked() == (1,)
    wait_until(lambda: looked() is None, "the owner's backend to be gone")
    clerk.session.close()


def test_where_the_server_does_not_say_who_it_is_nothing_is_recognised_unread(narrow: Narrow, tmp_path: Path) -> None:
    """A provider may revoke pg_control_system: the finished input is read again, and every row is `already`."""
    admin.init(narrow.dsn, schema=SCHEMA)
    execute(narrow.admin, "revoke execute on function pg_control_system() from public")
    options = {"job": "pay", "key": "id", "amount": "amount", "dsn": narrow.dsn, "schema": SCHEMA}
    source = write_input(tmp_path / "in.csv")
    first, second = run(source, **options), run(source, **options)
    assert (first.start.applied.rows, first.shortcut) == (ROWS, False)
    assert (second.start.already.rows, second.shortcut) == (ROWS, False)
    clerk = make_clerk(narrow.dsn, SCHEMA)
    names = {clerk.do(counting.cluster_identity, commit=False) for _ in range(2)}
    clerk.session.close()
    assert len(names) == 2
    assert all(name.startswith("unknown/") for name in names)


def test_a_role_that_may_only_read_is_told_by_doctor(narrow: Narrow, roles: Callable[[], str]) -> None:
    """It can look at everything and run nothing."""
    reader = roles()
    database = conninfo_to_dict(narrow.dsn)["dbname"]
    admin.init(narrow.dsn, schema=SCHEMA)
    execute(
        narrow.admin,
        f"grant connect on database {database} to {reader}",
        f'grant usage on schema "{SCHEMA}" to {reader}',
        f'grant select on all tables in schema "{SCHEMA}" to {reader}',
    )
    diagnosis = admin.doctor(make_conninfo(narrow.admin, user=reader), schema=SCHEMA)
    rights = [one.subject for one in diagnosis.findings if one.check == "rights"]
    assert "table event" in rights
    assert {one.check for one in diagnosis.findings if one.level == doctor.PROBLEM} == {"rights"}
    assert drift.compare(drift.expected(), described(make_conninfo(narrow.admin, user=reader), SCHEMA)) == []


SETTINGS = {
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "100ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "row_security": "off",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-15",
    "enable_seqscan": "off",
    "client_encoding": "LATIN1",
    "search_path": "''",
    "quote_all_identifiers": "on",
    "xmloption": "document",
    "array_nulls": "off",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_set_for_the_role_changes_nothing(database: str, tmp_path: Path, setting: str) -> None:
    """Each setting alone: the same rows, payloads and report, run and run again, and a clean schema."""
    name = conninfo_to_dict(database)["dbname"]
    source = tmp_path / "in.csv"
    source.write_text("id,amount,day\nÄ1,10,2026-11-30\nb\\2,20,2026-12-01\nб3,oops,\n", encoding="utf-8")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            sql.SQL("alter database {} set {} = {}").format(
                sql.Identifier(name),
                sql.Identifier(setting),
                sql.SQL(SETTINGS[setting]) if setting == "search_path" else sql.Literal(SETTINGS[setting]),
            )
        )
    reports = [run(source, job="pay", key="id", amount="amount", dsn=database) for _ in range(2)]
    assert [(one.start.applied.rows, one.start.already.rows, one.run.rejected.rows) for one in reports] == [
        (2, 0, 1),
        (0, 2, 1),
    ]
    with psycopg.connect(database, client_encoding="utf8", autocommit=True) as connection:
        found = connection.execute("select event_id, amount_cents, payload from pgonce.event order by line").fetchall()
        raw = connection.execute("select raw from pgonce.finding").fetchone()
    assert [row[:2] for row in found] == [("Ä1", 10), ("b\\2", 20)]
    assert raw is not None
    assert raw[0].decode() == "б3,oops,\n"
    assert admin.doctor(database).clean


def test_a_role_whose_sessions_are_replicas_is_refused(database: str, tmp_path: Path) -> None:
    """Foreign keys and guards would not hold: exit 78, nothing applied, and doctor says why."""
    name = conninfo_to_dict(database)["dbname"]
    execute(database, f"alter database {name} set session_replication_role = replica")
    for call in (
        lambda: run(write_input(tmp_path / "in.csv"), job="pay", key="id", amount="amount", dsn=database),
        lambda: admin.doctor(database),
    ):
        with pytest.raises(ConfigurationError, match="session_replication_role is replica"):
            call()
    assert execute(database, "select count(*) from pgonce.event") == [(0,)]


def test_what_stands_earlier_in_the_path_captures_nothing(database: str, tmp_path: Path) -> None:
    """Tables, functions, types and operators named like those pgonce uses, before pg_catalog itself."""
    name = conninfo_to_dict(database)["dbname"]
    types = ("text", "bigint", "integer", "boolean", "uuid", "oid", "name", "timestamptz", '"char"')
    operators = [
        f"create function evil.op(a {kind}, b {kind}) returns boolean language plpgsql as"
        " 'begin raise exception ''captured''; end'"
        for kind in types
    ] + [
        f"create operator evil.{operator} (leftarg = {kind}, rightarg = {kind}, function = evil.op)"
        for kind in types
        for operator in ("=", "<>", "<", ">", ">=", "<=")
    ]
    trap = "language plpgsql as 'begin raise exception ''captured''; end'"
    functions = [
        f"create function evil.{signature} {trap}"
        for signature in (
            "clock_timestamp() returns timestamptz",
            "pg_backend_pid() returns integer",
            "version() returns text",
            "now() returns timestamptz",
            "current_setting(text) returns text",
            "set_config(text, text, boolean) returns text",
            "pg_is_in_recovery() returns boolean",
            "gen_random_uuid() returns uuid",
            "octet_length(text) returns integer",
            "hashtextextended(text, integer) returns bigint",
            "pg_advisory_xact_lock(bigint) returns void",
            "to_regclass(text) returns regclass",
            "pg_current_xact_id() returns xid8",
            "has_database_privilege(name, text) returns boolean",
            "format_type(oid, integer) returns text",
        )
    ]
    tables = [
        f"create table evil.{table} (id integer)"
        for table in ("event", "effect", "run", "start", "job", "chunk", "pg_class", "pg_stat_activity", "pg_namespace")
    ]
    execute(database, "create schema evil", *operators, *functions, *tables, "create domain evil.text as integer")
    make_accounts(database, "public.")
    execute(database, f"alter database {name} set search_path = evil, public, pg_catalog")
    effect = write_effect(
        tmp_path / "effect.sql",
        "update account as a set balance = a.balance + c.cents"
        " from (select account, pg_catalog.sum(amount_cents) as cents from chunk group by account) as c"
        " where a.id operator(pg_catalog.=) c.account",
    )
    for number in range(2):
        report = run(
            write_input(tmp_path / "in.csv"), job="pay", key="id", amount="amount", effect=effect, dsn=database
        )
        assert (report.exit_code, report.shortcut) == (0, number == 1)
    plain = make_conninfo(database, options="-c search_path=public")
    assert execute(plain, "select sum(balance)::bigint from account") == [(TOTAL,)]
    assert execute(plain, "select count(*), sum(amount_cents)::bigint from pgonce.effect") == [(ROWS, TOTAL)]
    assert admin.migrate(database).applied == ()
    assert admin.doctor(database).clean


def test_the_effect_reads_dates_as_its_user_does(database: str, tmp_path: Path) -> None:
    """`01.02.2026` is what the user's own sessions take it for."""
    name = conninfo_to_dict(database)["dbname"]
    execute(database, "create table public.day (day date)", f"alter database {name} set DateStyle = 'German, DMY'")
    effect = write_effect(tmp_path / "effect.sql", "insert into public.day select '01.02.2026' from chunk limit 1")
    report = run(write_input(tmp_path / "in.csv"), job="pay", key="id", amount="amount", effect=effect, dsn=database)
    assert report.exit_code == 0
    assert execute(database, "select extract(month from day)::integer from public.day") == [(2,)]


def test_the_effect_still_sees_the_path_of_its_user(database: str, tmp_path: Path) -> None:
    """What the user's sessions find without qualifying, the user's SQL finds, also by a path given with the dsn."""
    execute(database, "create schema shop")
    make_accounts(database, "shop.")
    dsn = make_conninfo(database, options="-c search_path=shop")
    report = run(
        write_input(tmp_path / "in.csv"),
        job="pay",
        key="id",
        amount="amount",
        effect=write_effect(tmp_path / "effect.sql"),
        dsn=dsn,
    )
    assert report.exit_code == 0
    assert execute(database, "select sum(balance)::bigint from shop.account") == [(TOTAL,)]
