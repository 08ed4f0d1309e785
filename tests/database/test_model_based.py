"""Random histories of runs, failures, resumes and operators, against a model that is a dictionary.

More examples, the same ones every time: PGONCE_MODEL_EXAMPLES=500 PGONCE_MODEL_FIXED=1. A failure is made small with
PGONCE_MODEL_SHRINK=1, which takes minutes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from database.jobs import Desk, clerk_on, make_order
from pgonce.db.transaction import Transaction
from pgonce.errors import PgonceError
from pgonce.model.report import RunReport

EXAMPLES = int(os.environ.get("PGONCE_MODEL_EXAMPLES", "15"))

# The effect refuses this amount, as a user's constraint would: such a row is found by bisecting.
REFUSED = 13

Row = tuple[str, int, str]


@dataclass
class Input:
    """A file of the model: its rows, and which of them are settled."""

    path: Path
    rows: list[Row]
    settled: int = 0
    run_id: int = 0
    results: dict[int, str] = field(default_factory=dict)


class _Killed(BaseException):
    """The process dies here."""


@contextmanager
def dying_at(nth: int) -> Iterator[None]:
    """Let the n-th of pgonce's own statements never happen, nor anything after it."""
    left, original = [nth], Transaction.rows

    def rows(self: Transaction, name: str, /, **parameters: object) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise _Killed(name)
        return original(self, name, **parameters)

    with patch.object(Transaction, "rows", rows):
        yield


IDS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
USABLE = st.tuples(IDS, st.sampled_from([1, 2, 30, REFUSED, -4]), st.sampled_from(["x", "y"]))
ROWS = st.lists(st.one_of(USABLE, USABLE, USABLE, st.just(("", 5, "bad"))), min_size=1, max_size=12)
LIMITS = st.fixed_dictionaries(
    {"chunk_rows": st.sampled_from([1, 2, 3, 5, 100]), "checkpoint": st.sampled_from(["chunk", "chunk", "item", "all"])}
)


class Machine(RuleBasedStateMachine):
    """The operations of a job, each done to the database and to a dictionary."""

    inputs = Bundle("inputs")
    make_desk: Callable[[], Desk]

    def __init__(self) -> None:
        super().__init__()
        self.desk = self.make_desk()
        self.events: dict[str, list[Any]] = {}
        self.files: list[Input] = []
        self.by_content: dict[tuple[Row, ...], Input] = {}

    def teardown(self) -> None:
        """Settle everything; then two more runs change nothing."""
        for one in self.files:
            self.finish(one, {"chunk_rows": 3})
        before = self.desk.everything()
        for one in self.files:
            self.desk.run(one.path, order=make_order(chunk_rows=2, on_error="quarantine"))
        assert self.desk.everything() == before
        self.desk.clerk.session.close()
        self.desk.close()

    @rule(target=inputs, rows=ROWS)
    def write(self, rows: list[Row]) -> Any:
        """Write a new input."""
        if tuple(rows) in self.by_content:
            return multiple()
        one = Input(self.desk.csv(rows), rows)
        self.by_content[tuple(rows)] = one
        self.files.append(one)
        return one

    @rule(one=inputs, limits=LIMITS)
    def finish(self, one: Input, limits: dict[str, Any]) -> None:
        """Run an input to its end, for the first time, again, or on from where it was left."""
        begin = self.begin(one)
        if limits.get("checkpoint") == "all" and self.refuses(one.rows[begin:]):
            limits = {**limits, "checkpoint": "chunk"}
        report = self.desk.run(one.path, order=make_order(on_error="quarantine", **limits))
        one.run_id = report.run_id
        if report.shortcut:
            assert begin == 0
            own = [row for row in one.rows if row[0] and self.events[row[0]][1:] == [row[1], row[2]]]
            assert not any(self.events[row[0]][0] == "pending" for row in own)
        expected = self.settle(one, begin, len(one.rows))
        self.compare(report, expected)
        if report.exit_code == 75:
            # One of the rows before was reopened before the run was finished: the next start reads it, and applies it.
            assert any(row[0] and self.events[row[0]][0] == "pending" for row in one.rows[:begin])
            self.finish(one, limits)
            return
        assert report.run.pending.rows == 0
        if begin == 0:
            assert report.exit_code == int(any(expected[name] for name in ("failed", "conflict", "rejected")))

    @rule(one=inputs, limits=LIMITS, nth=st.integers(1, 60))
    def die(self, one: Input, limits: dict[str, Any], nth: int) -> None:
        """Run an input and die at some statement; what was committed is a prefix."""
        begin = self.begin(one)
        if limits.get("checkpoint") == "all" and self.refuses(one.rows[begin:]):
            limits = {**limits, "checkpoint": "chunk"}
        before = self.desk.one("select count(*) from pgonce.start")
        try:
            with dying_at(nth):
                self.desk.run(one.path, order=make_order(on_error="quarantine", **limits))
        except _Killed:
            pass
        if self.desk.one("select count(*) from pgonce.start") == before:
            return
        rows_read, one.run_id = self.desk.sql(
            "select rows_read, run_id from pgonce.start order by started_at desc limit 1"
        )[0]
        self.settle(one, begin, begin + rows_read)

    @rule(one=inputs, chunks=st.integers(0, 3), limits=LIMITS)
    def stop(self, one: Input, chunks: int, limits: dict[str, Any]) -> None:
        """Run an input and ask it to stop between two chunks."""
        if self.is_finished(one) or limits.get("checkpoint") == "all":
            return
        asked = iter([False] * chunks + [True] * 1000)
        begin = self.begin(one)
        try:
            self.desk.run(one.path, order=make_order(on_error="quarantine", **limits), interrupted=lambda: next(asked))
        except PgonceError as stopped:
            assert stopped.retryable  # noqa: PT017
        rows_read, one.run_id = self.desk.sql(
            "select rows_read, run_id from pgonce.start order by started_at desc limit 1"
        )[0]
        self.settle(one, begin, begin + rows_read)

    @rule(event_id=IDS)
    def reopen(self, event_id: str) -> None:
        """Reopen a failed event, as the operator does."""
        if self.events.get(event_id, [""])[0] != "failed":
            return
        self.events[event_id][0] = "pending"
        self.desk.sql(
            """with h as (insert into pgonce.event_history (job, source, event_id, step, action, old_status,
            old_amount_cents, old_payload, old_error, old_attempts, who, why)
            select job, source, event_id, 1 + (select count(*) from pgonce.event_history where event_id = e.event_id),
            'reopened', status, amount_cents, payload, error, attempts, 'me', 'try it' from pgonce.event as e
            where event_id = %s),
            r as (update pgonce.run set touched = true
            where run_id = (select run_id from pgonce.event where event_id = %s))
            update pgonce.event set status = 'pending', attempts = 0, error = null where event_id = %s""",
            event_id, event_id, event_id,
        )  # fmt: skip

    @rule()
    def lift(self) -> None:
        """Mend the effect: from now on it refuses nothing."""
        self.desk.sql("alter table pgonce.effect drop constraint if exists refused")

    @invariant()
    def same(self) -> None:
        """States, effects, findings and the total are those of the model."""
        desk = self.desk
        assert desk.statuses() == {event_id: event[0] for event_id, event in sorted(self.events.items())}
        completed = {event_id: event[1] for event_id, event in self.events.items() if event[0] == "completed"}
        assert desk.effects() == dict(sorted(completed.items()))
        found = {(run, line): kind for run, line, kind in desk.sql("select run_id, line, kind from pgonce.finding")}
        assert found == {
            (one.run_id, line + 2): result
            for one in self.files for line, result in one.results.items() if result in ("rejected", "conflict")
        }  # fmt: skip

    def is_finished(self, one: Input) -> bool:
        """Say whether the run of an input was finished: the next start reads it again then."""
        return bool(self.desk.sql("select 1 from pgonce.run where run_id = %s and finished_at is not null", one.run_id))

    def begin(self, one: Input) -> int:
        """Return the index of the row that the next start begins with."""
        return 0 if self.is_finished(one) else one.settled

    def refuses(self, rows: list[Row]) -> bool:
        """Say whether a whole input would be refused by the effect."""
        return any(row[1] == REFUSED for row in rows)

    def settle(self, one: Input, begin: int, end: int) -> Counter[str]:
        """Settle some rows of an input in the model; return their results."""
        refused = bool(self.desk.sql("select 1 from pg_constraint where conname = 'refused'"))
        results: Counter[str] = Counter()
        for line in range(begin, end):
            result = self.settle_row(one.rows[line], refused)
            results[result] += 1
            one.results.setdefault(line, result)
        one.settled = max(one.settled, end)
        return results

    def settle_row(self, row: Row, refused: bool) -> str:
        """Settle one row in the model."""
        event_id, amount, note = row
        if not event_id:
            return "rejected"
        event = self.events.setdefault(event_id, ["new", amount, note])
        if event[1:] != [amount, note]:
            return "conflict"
        if event[0] in ("new", "pending"):
            event[0] = "failed" if amount < 0 or (refused and amount == REFUSED) else "completed"
            return "applied" if event[0] == "completed" else "failed"
        return "already" if event[0] == "completed" else "failed"

    def compare(self, report: RunReport, expected: Counter[str]) -> None:
        """Compare a report with what the model says, in rows; cents are balanced by the engine itself."""
        told = report.start.as_dict()
        assert {name: tally["rows"] for name, tally in told.items() if tally["rows"] and name != "read"} == dict(
            expected
        )
        assert report.start.balanced
        assert report.run.balanced


def test_any_history_ends_as_the_model_says(
    make_database: Callable[..., str], template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1, E5, E7, E8, I2, I3, I4, I7, P1: statuses, effects, findings and counts after any history are the model's."""
    numbers = iter(range(1_000_000))

    def make_desk(_: Machine | None = None) -> Desk:
        dsn = make_database(template)
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        desk = Desk(dsn=dsn, clerk=clerk_on(dsn), folder=folder, make_clerk=lambda: clerk_on(dsn))
        desk.sql(f"alter table pgonce.effect add constraint refused check (amount_cents <> {REFUSED}) not valid")
        return desk

    monkeypatch.setattr(Machine, "make_desk", make_desk, raising=False)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=12,
            deadline=None,
            phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if "PGONCE_MODEL_SHRINK" in os.environ else [])],
            report_multiple_bugs=False,
            database=None,
            derandomize="PGONCE_MODEL_FIXED" in os.environ,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_an_event_reopened_before_its_run_was_finished_is_applied_by_the_run_after_next(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7, E5: all rows are settled and the process dies; the next start only finishes, and says that one is pending."""
    desk.sql(f"alter table pgonce.effect add constraint refused check (amount_cents <> {REFUSED}) not valid")
    path = desk.csv([("a", 1, "x"), ("c", REFUSED, "y")])
    rows = Transaction.rows

    def dying(self: Transaction, name: str, /, **parameters: object) -> Any:
        if name == "finish_run":
            raise _Killed(name)
        return rows(self, name, **parameters)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "rows", dying)
        with pytest.raises(_Killed):
            desk.run(path, order=make_order())
    assert desk.statuses() == {"a": "completed", "c": "failed"}
    desk.sql(
        """update pgonce.event set status = 'pending', attempts = 0, error = null where event_id = 'c';
        alter table pgonce.effect drop constraint refused"""
    )
    finishing, applying = desk.run(path, order=make_order()), desk.run(path, order=make_order())
    assert (finishing.exit_code, finishing.run.pending.rows, finishing.start.read.rows) == (75, 1, 0)
    assert (applying.exit_code, applying.run.applied.rows, desk.effects()) == (0, 2, {"a": 1, "c": REFUSED})
