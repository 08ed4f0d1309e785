"""What the tests of the schema share: the command in processes of its own, and the schema as text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from conftest import make_clerk
from pgonce.db import drift

# A command of these tests is done within a second; this is for a machine that is drowning.
COMMAND_S_MAX = 60.0

ODD_NAMES = ("pgonce", "Two Words", 'quo"ted', "a'b", "back\\slash", "naïve", "select", "x" * 63, "$block$", "do%s{0}")


def argv(*arguments: str) -> list[str]:
    """Give the command line of pgonce."""
    return [sys.executable, "-m", "pgonce", *arguments]


def environment() -> dict[str, str]:
    """Give an environment that names no database."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG") and name != "DATABASE_URL"}


def pgonce(*arguments: str, **added: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        argv(*arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S_MAX,
        env=environment() | added,
        stdin=subprocess.DEVNULL,
    )


@contextmanager
def started(*commands: Sequence[str], env: dict[str, str] | None = None) -> Iterator[list[subprocess.Popen[str]]]:
    """Start commands side by side; what still runs at the end of the block is killed."""
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            running.append(
                subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment() | (env or {}),
                    start_new_session=True,
                )
            )
        yield running
    finally:
        for process in running:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def ended(running: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Wait for processes; return exit code, output and messages of each."""
    outputs = [process.communicate(timeout=COMMAND_S_MAX) for process in running]
    return [(process.returncode, *output) for process, output in zip(running, outputs, strict=True)]


def psql(bin_dir: Path, dsn: str, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Apply SQL as a person would, in one transaction."""
    return subprocess.run(
        [str(bin_dir / "psql"), "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", "-", *options],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S_MAX,
        env=environment() | {"PGCLIENTENCODING": "UTF8"},
    )


def described(dsn: str, schema: str = "pgonce") -> tuple[str, ...]:
    """Describe the schema as it stands, without the prefix of its name."""
    clerk = make_clerk(dsn, schema)
    try:
        return clerk.do(drift.describe, commit=False)
    finally:
        clerk.session.close()


def execute(dsn: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements one by one, each committed; return the rows of the last."""
    rows: Sequence[tuple[object, ...]] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return list(rows)
