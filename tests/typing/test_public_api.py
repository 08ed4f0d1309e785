"""The public API as a program of somebody else uses it: mypy in strict mode reads this file, and pytest runs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

import pytest

import pgonce


class Watcher:
    """An observer is whatever has these three methods."""

    def __init__(self) -> None:
        self.rows = 0

    def began(self, input_name: str, input_bytes: int, position: object) -> None:
        """Do nothing."""

    def committed(self, step: pgonce.Step) -> None:
        """Count the rows."""
        self.rows += assert_type(step.rows, int)

    def retried(self, sqlstate: str | None, reason: str) -> None:
        """Do nothing."""


def settle(path: str | Path, dsn: str, watcher: pgonce.Observer) -> pgonce.RunReport:
    """Call ``pgonce.run`` with every argument that has a type of its own."""
    key: str | Sequence[str] = ("payment_id",)
    return pgonce.run(
        path,
        job="settle",
        key=key,
        amount="amount",
        amount_scale=2,
        ignore=["fetched_at"],
        types={"booked_on": "date"},
        reading=pgonce.ReadingOptions(format="csv", delimiter=";"),
        limits=pgonce.Limits(
            checkpoint="chunk",
            chunk_rows=2,
            on_error="quarantine",
            max_rejected=10,
            retry_on={"23503": 2, "public.payment_account_fkey": 1},
            backoff=pgonce.Backoff(first_s=0.05, cap_s=2),
            seed=7,
        ),
        dsn=dsn,
        observer=watcher,
        interrupted=lambda: False,
    )


def test_a_report_is_typed_and_true(tmp_path: Path, database: str) -> None:
    """What a caller gets has the types that it says, and the values."""
    path = tmp_path / "payments.csv"
    path.write_text("payment_id;amount;booked_on;fetched_at\nP-1;12.50;2026-11-30;now\nP-2;1;2026-11-30;now\n")
    watcher = Watcher()
    report = assert_type(settle(path, database, watcher), pgonce.RunReport)
    assert_type(report.run, pgonce.Counts)
    assert_type(report.notes, tuple[str, ...])
    assert_type(report.exit_code, int)
    assert_type(report.used_up, int)
    assert assert_type(report.run.applied, pgonce.Tally) == pgonce.Tally(rows=2, cents=1350)
    assert report.run.read + pgonce.Tally() == report.run.accounted
    assert watcher.rows == 2
    assert settle(path, database, watcher).shortcut is True


def test_errors_are_caught_by_what_can_be_done(tmp_path: Path, database: str) -> None:
    """A caller tells by the class, or by two attributes, whether to try again."""
    with pytest.raises(pgonce.ConfigurationError) as caught:
        settle(tmp_path / "missing.csv", database, Watcher())
    error: pgonce.PgonceError = caught.value
    assert_type(error.retryable, bool)
    assert_type(error.maybe_committed, bool)
    assert_type(error.sqlstate, str | None)
    assert not isinstance(error, pgonce.Retryable | pgonce.Permanent)
    assert (error.retryable, error.maybe_committed) == (False, False)
