"""The pytest plugin: one line tests a job of the user's own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from crashtest.programs import SCHEMA

TEST_FILE = """
import asyncio, psycopg, pytest

def settle(dsn, amount):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into done values ('P-1') on conflict do nothing")
        connection.execute("update balance set cents = cents + %s", (amount,))

async def guarded(amount):
    connection = await psycopg.AsyncConnection.connect("", autocommit=True)
    async with connection, connection.transaction():
        mark = await connection.execute("insert into done values ('P-1') on conflict do nothing returning 1")
        if await mark.fetchone():
            await connection.execute("update balance set cents = cents + %s", (amount,))

@pytest.mark.pgonce_crash(setup="schema.sql", faults=["cut-after"])
def test_settle(pgonce_crash):
    pgonce_crash(settle, "{dsn}", amount=7)

@pytest.mark.pgonce_crash(setup="schema.sql", faults=["cut-after"])
def test_guarded(pgonce_crash):
    report = pgonce_crash(guarded, 7)
    assert report.is_safe

@pytest.mark.pgonce_crash(setup="schema.sql")
def test_command_that_does_not_connect(pgonce_crash):
    pgonce_crash.command(["true"])

def test_a_closure(pgonce_crash):
    pgonce_crash(lambda: None)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a test file of its own."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "schema.sql").write_text(SCHEMA)
    (made / "test_money.py").write_text(TEST_FILE)
    return made


def run_pytest(project: Path, *arguments: str) -> str:
    """Run pytest on the project; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return done.stdout + done.stderr


def test_an_unsafe_function_fails_with_the_point_and_a_line_to_see_it_again(project: Path) -> None:
    """The report stands in the test's failure, and the line it ends with tries that point alone."""
    told = run_pytest(project, "-k", "test_settle")
    assert "NOT SAFE (DOUBLED)" in told
    assert "balance: sum of cents is 14, 7 after a clean run" in told
    replay = next(line for line in told.splitlines() if "to see it again: pytest 'test_money.py::test_settle'" in line)
    again = run_pytest(project, "-k", "test_settle", replay.split()[-1])
    assert "1 trials in" in again
    assert "balance: sum of cents is 14, 7 after a clean run" in again


def test_a_safe_async_function_passes(project: Path) -> None:
    """A coroutine function is run to its end."""
    assert "1 passed" in run_pytest(project, "-k", "test_guarded").splitlines()[-1]


def test_what_cannot_be_tested_fails(project: Path) -> None:
    """A test that tests nothing must not be green, and a closure cannot be called in another process."""
    told = run_pytest(project, "-k", "does_not_connect or closure")
    assert "it could not be tested: the program did not connect" in told
    assert "needs a function that stands in a module" in told
    assert "passed" not in told.splitlines()[-1]


def test_a_mistyped_option_is_refused(project: Path) -> None:
    """Nothing runs with a thoroughness that nobody asked for."""
    assert "--pgonce-crash=some is none of: all" in run_pytest(project, "--pgonce-crash=some")


MANY_FILE = """
import anyio, psycopg, pytest

pytestmark = pytest.mark.pgonce_crash(setup="schema.sql", faults=["cut-after"])
MARK = "insert into done values (%s) on conflict do nothing"

def sync(payment):
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute(MARK, (payment,))

async def with_asyncio(payment):
    async with await psycopg.AsyncConnection.connect("", autocommit=True) as connection:
        await connection.execute(MARK, (payment,))

async def with_anyio(payment):
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, sync, payment)

@pytest.fixture
def anyio_backend():
    return "asyncio"

def test_sync(pgonce_crash):
    assert pgonce_crash(sync, "P-1").is_safe

def test_asyncio(pgonce_crash):
    assert pgonce_crash(with_asyncio, "P-1").is_safe

@pytest.mark.anyio
async def test_anyio(pgonce_crash):
    assert pgonce_crash(with_anyio, "P-1").is_safe
"""

LIGHT_FILE = """
import sys

def loaded():
    return sorted(name for name in sys.modules if name.split(".")[0] in ("pgonce", "psycopg", "click", "rich"))

def test_nothing_is_loaded():
    assert loaded() == []

def test_not_even_for_the_fixture(pgonce_crash):
    assert loaded() == []
"""

# What pytest itself has not imported already: the plugin, pickle and base64 with their C halves.
MODULES_ADDED_MAX = 5


def test_functions_of_every_kind_are_tested_also_by_several_workers(project: Path) -> None:
    """Plain, asyncio and anyio functions, in a test that is itself a coroutine, too; two workers share the tests."""
    (project / "test_many.py").write_text(MANY_FILE)
    told = run_pytest(project, "-n", "2", "-vv", "test_many.py")
    assert re.search(r"\b3 passed", told.splitlines()[-1]), told
    assert {name for name in ("gw0", "gw1") if f"[{name}]" in told} == {"gw0", "gw1"}


def test_the_plugin_is_light(project: Path) -> None:
    """A project that does not use it pays for nothing: neither pgonce nor a driver is imported."""
    (project / "test_light.py").write_text(LIGHT_FILE)
    assert "2 passed" in run_pytest(project, "test_light.py").splitlines()[-1]
    code = "import sys, pytest; before = set(sys.modules); import _pgonce_pytest; print(len(set(sys.modules) - before))"
    added = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 1 <= int(added) <= MODULES_ADDED_MAX
