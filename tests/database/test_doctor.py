"""`db doctor` names what is not as the migrations make it, and what around the schema endangers or delays jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from migration.installing import execute
from pgonce import run
from pgonce.api import admin
from pgonce.engine import doctor as doctors
from pgonce.server import ScratchServer

DRIFTS = {
    "a column added": (
        "alter table pgonce.event add column extra integer",
        "column event.extra",
        "column event.extra is not pgonce's: integer",
    ),
    "a column dropped": (
        "alter table pgonce.event_history drop column why",
        "column event_history.why",
        "is missing; the migrations make it as: text not null",
    ),
    "a type changed": (
        "alter table pgonce.finding alter column amount_cents type integer",
        "column finding.amount_cents",
        "is: integer; the migrations make it as: bigint",
    ),
    "a null allowed": (
        "alter table pgonce.run alter column digest drop not null",
        "column run.digest",
        "is: text; the migrations make it as: text not null",
    ),
    "a default changed": (
        "alter table pgonce.job alter column attempt_budget set default 1000",
        "column job.attempt_budget",
        "default 1000",
    ),
    "a collation changed": (
        'alter table pgonce.finding alter column event_id type text collate "POSIX"',
        "column finding.event_id",
        'is: text collate "POSIX"',
    ),
    "a check dropped": (
        "alter table pgonce.effect drop constraint effect_amount_not_negative",
        "constraint effect.effect_amount_not_negative",
        "is missing",
    ),
    "a check not validated": (
        (
            "alter table pgonce.run drop constraint run_kind_known, add constraint run_kind_known"
            " check (kind in ('apply', 'adopt')) not valid"
        ),
        "constraint run.run_kind_known",
        "NOT VALID",
    ),
    "a reference dropped": (
        "drop trigger effect_reference on pgonce.effect",
        "trigger effect.effect_reference",
        "is missing",
    ),
    "a reference not on replicas": (
        "alter table pgonce.effect enable trigger effect_reference",
        "trigger effect.effect_reference",
        "the migrations make it as: CREATE TRIGGER effect_reference",
    ),
    "a unique index added": (
        "create unique index once on pgonce.event (run_id, line)",
        "index event.once",
        "is not pgonce's: CREATE UNIQUE INDEX once",
    ),
    "an index dropped": ("drop index pgonce.event_open_idx", "index event.event_open_idx", "is missing"),
    "an index invalid": (
        "update pg_index set indisvalid = false where indexrelid = 'pgonce.event_open_idx'::regclass",
        "index event.event_open_idx",
        "(invalid)",
    ),
    "a guard disabled": (
        "alter table pgonce.event disable trigger event_final",
        "trigger event.event_final",
        "(disabled)",
    ),
    "a guard not on replicas": (
        "alter table pgonce.effect enable trigger effect_keep",
        "trigger effect.effect_keep",
        "the migrations make it as: CREATE TRIGGER effect_keep",
    ),
    "a trigger added": (
        "create trigger theirs before insert on pgonce.effect for each row execute function pgonce.refuse_change()",
        "trigger effect.theirs",
        "is not pgonce's",
    ),
    "a guard that lets everything pass": (
        "create or replace function pgonce.refuse_change() returns trigger language plpgsql as 'begin return new; end'",
        "function refuse_change()",
        "source",
    ),
    "a function changed": (
        "alter function pgonce.refuse_change() set search_path = public",
        "function refuse_change()",
        "set search_path=public",
    ),
    "a table unlogged": (
        "alter table pgonce.event_history set unlogged",
        "table event_history",
        "is: ordinary unlogged",
    ),
    "row security": (
        "alter table pgonce.event enable row level security",
        "table event",
        "with row security",
    ),
    "a rule": (
        "create rule theirs as on insert to pgonce.effect do instead nothing",
        "table effect",
        "with rules",
    ),
}


def test_a_fresh_schema_is_clean(database: str) -> None:
    """Nothing has to be put right: exit code 0, on the oldest and the newest server."""
    diagnosis = admin.doctor(database)
    assert [one.text for one in diagnosis.findings if one.level == doctors.PROBLEM] == []
    assert diagnosis.exit_code == 0


@pytest.mark.parametrize(("statements", "subject", "text"), DRIFTS.values(), ids=DRIFTS)
def test_each_drift_is_named(database: str, statements: str, subject: str, text: str) -> None:
    """One difference, one finding, with what is there and what should be: exit code 3."""
    execute(database, statements)
    diagnosis = admin.doctor(database)
    found = [one for one in diagnosis.findings if one.check == "drift"]
    assert [one.subject for one in found] == [subject]
    assert text in found[0].text
    assert diagnosis.exit_code == 3


def test_what_users_keep_beside_the_tables_is_not_drift(database: str) -> None:
    """A role that owns only this schema has nowhere else to put its own tables."""
    execute(
        database,
        "create table pgonce.account (id integer primary key)",
        "create view pgonce.events_by_day as select recorded_at::date, count(*) from pgonce.event group by 1",
        "create function pgonce.mine() returns integer language sql as 'select 1'",
    )
    assert admin.doctor(database).clean


def test_references_whose_triggers_are_disabled_are_named(database: str) -> None:
    """`disable trigger all` also silences foreign keys, which still stand in the catalogue."""
    admin.migrate(database, reference="row")
    assert admin.doctor(database).clean
    execute(database, "alter table pgonce.effect disable trigger all")
    found = {(one.check, one.subject) for one in admin.doctor(database).findings if one.level == doctors.PROBLEM}
    assert found == {("reference", "constraint effect.effect_event_fkey"), ("drift", "trigger effect.effect_keep")}


def test_a_prepared_transaction_that_holds_our_tables_is_named(database: str) -> None:
    """It holds its locks over restarts, and blocks every job that meets them."""
    with psycopg.connect(database) as connection:
        connection.execute("lock table pgonce.event in share mode")
        connection.execute("prepare transaction 'left behind'")
    try:
        found = [one for one in admin.doctor(database).findings if one.check == "prepared"]
        assert [one.subject for one in found] == ["prepared transaction left behind"]
        assert "holds locks on event until" in found[0].text
    finally:
        execute(database, "rollback prepared 'left behind'")
    assert admin.doctor(database).clean


def test_a_session_that_idles_in_a_transaction_is_named(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the server from cleaning up; the limit is set to nothing here."""
    monkeypatch.setattr(doctors, "IDLE_S", 0.0)
    with psycopg.connect(database, application_name="dreamer") as connection:
        connection.execute("select pg_current_xact_id()")
        found = [one for one in admin.doctor(database).findings if one.check == "idle"]
        assert [one.subject for one in found] == [f"backend {connection.info.backend_pid}"]
        assert "dreamer" in found[0].text
        connection.rollback()
    monkeypatch.undo()


@contextmanager
def role_setting(dsn: str, setting: str) -> Iterator[None]:
    """Set something for every session of this database, and take it back."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    execute(dsn, f"alter database {name} set {setting}")
    yield
    execute(dsn, f"alter database {name} reset all")


def test_settings_that_matter_are_named(database: str) -> None:
    """Asynchronous commits are worth knowing, and are overridden by pgonce."""
    with role_setting(database, "synchronous_commit = off"):
        diagnosis = admin.doctor(database)
    found = [one for one in diagnosis.findings if one.subject == "synchronous_commit = off"]
    assert [(one.check, one.level) for one in found] == [("setting", doctors.INFO)]
    assert diagnosis.exit_code == 0


def test_pending_events_with_used_up_attempts_are_told(database: str, tmp_path: Path) -> None:
    """No run tries them again by itself; that is worth knowing and no fault of the schema."""
    (tmp_path / "in.csv").write_text("id,amount\na,1\nb,2\n")
    run(tmp_path / "in.csv", job="pay", key="id", amount="amount", dsn=database)
    execute(
        database,
        "insert into pgonce.event (job, source, event_id, status, amount_cents, payload, run_id, line, epoch, attempts)"
        " values ('pay', '', 'c', 'pending', 3, '{}', 1, 4, 1, 9), ('pay', '', 'd', 'pending', 3, '{}', 1, 5, 1, 8)",
    )
    diagnosis = admin.doctor(database)
    found = [one for one in diagnosis.findings if one.check == "used-up"]
    assert [(one.level, one.subject) for one in found] == [(doctors.INFO, "job pay")]
    assert found[0].text.startswith("1 pending events")
    assert diagnosis.exit_code == 0


def test_a_start_whose_owner_is_gone_is_told(database: str, tmp_path: Path) -> None:
    """It was killed: the same command goes on. One whose owner lives, and one that has ended, are not told."""
    (tmp_path / "in.csv").write_text("id,amount\na,1\n")
    run(tmp_path / "in.csv", job="pay", key="id", amount="amount", dsn=database)
    assert not [one for one in admin.doctor(database).findings if one.check == "start"]
    execute(database, "update pgonce.start set ended_at = null, ended_how = null")
    diagnosis = admin.doctor(database)
    found = [one for one in diagnosis.findings if one.check == "start"]
    assert [(one.level, one.subject) for one in found] == [(doctors.INFO, "run 1")]
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(
            "update pgonce.start set (backend_pid, backend_start) ="
            " (select pid, backend_start from pg_stat_activity where pid = pg_backend_pid())"
        )
        assert not [one for one in admin.doctor(database).findings if one.check == "start"]


def test_a_database_of_another_encoding_is_named(server: ScratchServer, make_database: Callable[[], str]) -> None:
    """Events with characters outside its encoding could not be stored."""
    dsn = make_database()
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    execute(
        server.dsn,
        f"drop database {name}",
        f"create database {name} template template0 encoding 'LATIN1' locale 'C'",
    )
    admin.init(dsn)
    found = [one for one in admin.doctor(dsn).findings if one.level == doctors.PROBLEM]
    assert [(one.check, one.subject) for one in found] == [("encoding", "encoding LATIN1")]


def test_an_unsupported_release_is_named() -> None:
    """PostgreSQL 15 to 18 are what the tests cover."""
    checks = [[one.check for one in doctors._server((major * 10_000, "UTF8"))] for major in (14, 15, 18, 19)]
    assert checks == [["version"], [], [], ["version"]]


def test_an_edited_migration_is_named(database: str) -> None:
    """The same number with other SQL comes from another build."""
    execute(database, "update pgonce.migration set sha256 = 'x' where version = 1")
    found = [one for one in admin.doctor(database).findings if one.level == doctors.PROBLEM]
    assert [(one.check, one.subject) for one in found] == [("migration", "migration 1")]
