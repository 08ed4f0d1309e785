"""A database that is there is copied, with its roles and settings, and never written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from crashtest.programs import PSQL, SCHEMA, plan
from pgonce.crashtest.conduct import conduct
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.verdict import Verdict
from pgonce.errors import ConfigurationError, Inconclusive, Unreachable

SCRIPT = (
    "insert into shop.done select id from shop.payment on conflict do nothing;\n"
    "insert into who values (current_user, current_setting('work_mem'), current_setting('search_path'));\n"
)


@pytest.fixture
def shop(make_database: Callable[..., str]) -> str:
    """A database with a schema of a role's own, a setting, and privileges that its public lost."""
    dsn = make_database()
    name = str(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop role if exists crash_clerk")
        connection.execute("create role crash_clerk login")
        connection.execute("create schema shop")
        connection.execute(SCHEMA.replace("create table ", "create table shop.").replace("into ", "into shop."))
        connection.execute("create table who (name text, mem text, path text)")
        connection.execute("grant all on all tables in schema shop, public to crash_clerk")
        connection.execute("grant usage on schema shop to crash_clerk")
        database = sql.Identifier(name)
        connection.execute(sql.SQL("alter database {} set work_mem to '7MB'").format(database))
        connection.execute(sql.SQL("alter database {} set search_path to shop, public").format(database))
        connection.execute(sql.SQL("revoke temporary on database {} from public").format(database))
    return dsn


@pytest.mark.parametrize("on_server", [False, True])
def test_a_copy_has_rows_roles_and_settings_and_the_original_stays_as_it_was(
    shop: str, folder: Path, on_server: bool
) -> None:
    """The program logs in as its own role, finds the database's settings, and changes only the copy."""
    (folder / "job.sql").write_text(SCRIPT)
    argv = [PSQL, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "job.sql", "-U", "crash_clerk"]
    tested = plan(
        folder,
        argv,
        schema="select 1",
        original_dsn=shop,
        on_server=on_server,
        faults=(Fault.CUT_BEFORE,),
        jobs=2,
        rules={"log_tables": frozenset({"who"}), "invariants": ("select * from who where mem <> '7MB'",)},
    )
    report = conduct(tested, tell=lambda _: None, on_result=lambda *_: None)
    assert report.baseline.effect == ("shop.done",)
    assert len(report.baseline.notes) == (1 if on_server else 0), "nothing was lacking"
    assert {result.verdict for result in report.results} == {Verdict.SAFE}
    assert report.baseline.clean.schema == report.baseline.before.schema
    with psycopg.connect(shop) as connection:
        assert connection.execute("select count(*) from shop.done").fetchone() == (0,)
        assert connection.execute("select count(*) from who").fetchone() == (0,)


@pytest.mark.parametrize("on_server", [False, True])
def test_a_role_that_may_not_do_it_fails_as_in_the_original(shop: str, folder: Path, on_server: bool) -> None:
    """Privileges are copied: what the role may not do on the original, it may not do here."""
    argv = [PSQL, "-X", "-v", "ON_ERROR_STOP=1", "-c", "create temporary table t (i integer)", "-U", "crash_clerk"]
    with pytest.raises(Inconclusive, match="permission denied to create temporary tables"):
        conduct(
            plan(folder, argv, schema="select 1", original_dsn=shop, on_server=on_server, faults=()),
            tell=lambda _: None,
            on_result=lambda *_: None,
        )


def test_an_original_that_cannot_be_reached_is_told(folder: Path) -> None:
    """Nothing was tested, and it may be up later."""
    unreachable = plan(folder, ["true"], original_dsn="host=127.0.0.1 port=1 dbname=none")
    with pytest.raises(Unreachable, match="cannot be reached"):
        conduct(unreachable, tell=lambda _: None, on_result=lambda *_: None)


def test_an_original_in_another_encoding_is_refused(make_database: Callable[..., str], folder: Path) -> None:
    """Rows are compared as UTF-8 text."""
    dsn = make_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop database if exists crash_latin")
        connection.execute(
            "create database crash_latin template template0 encoding 'LATIN1' locale_provider libc locale 'C'"
        )
    try:
        latin = plan(folder, ["true"], original_dsn=dsn, original_database="crash_latin")
        with pytest.raises(ConfigurationError, match="encoded in LATIN1"):
            conduct(latin, tell=lambda _: None, on_result=lambda *_: None)
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("drop database crash_latin")
