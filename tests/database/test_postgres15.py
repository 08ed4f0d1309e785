"""The oldest supported server, in every test run where it is installed; `make lane-15` runs all of the suite on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from database.test_roles import EFFECT, ROWS, TOTAL, make_accounts, write_effect, write_input
from migration.installing import described, execute
from pgonce import run
from pgonce import server as embedded
from pgonce.api import admin
from pgonce.db import drift
from pgonce.server import find

BIN = Path("/usr/lib/postgresql/15/bin")

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"PostgreSQL 15 is not installed in {BIN}")


@pytest.fixture(scope="module")
def oldest() -> Iterator[str]:
    """The dsn of a PostgreSQL 15, with the schema in it."""
    version = find.version_of(BIN)
    assert version is not None
    with embedded.scratch(settings={"fsync": "off"}, binaries=embedded.Binaries(BIN, version, "a test")) as made:
        admin.init(made.dsn)
        yield made.dsn


def test_it_is_the_oldest_supported_release(oldest: str) -> None:
    """The test means what it says."""
    assert admin.doctor(oldest).server_version.startswith("15.")
    assert find.MAJOR_MIN == 15


def test_the_schema_is_the_one_expected_of_every_release(oldest: str) -> None:
    """The catalogue of 15 is described in the same words as that of the newest; doctor finds nothing."""
    assert list(described(oldest)) == list(drift.expected())
    assert admin.doctor(oldest).clean


def test_the_main_job_runs_for_a_role_that_owns_only_its_schema(oldest: str, tmp_path: Path) -> None:
    """Install, run with an effect and without TEMP, run again."""
    execute(
        oldest,
        "create role narrow login",
        "revoke all on database pgonce from public",
        "grant connect on database pgonce to narrow",
        "create schema own authorization narrow",
        "alter role narrow set search_path = own",
    )
    dsn = make_conninfo(oldest, user="narrow")
    make_accounts(dsn)
    admin.init(dsn, schema="own")
    for number in range(2):
        report = run(
            write_input(tmp_path / "in.csv"),
            job="pay",
            key="id",
            amount="amount",
            effect=write_effect(tmp_path / "effect.sql", EFFECT),
            dsn=dsn,
            schema="own",
        )
        assert (report.exit_code, report.shortcut) == (0, number == 1)
    assert execute(dsn, "select sum(balance)::bigint from account") == [(TOTAL,)]
    assert execute(dsn, "select count(*) from own.effect") == [(ROWS,)]
