"""A job's definition is guarded, and changed only on record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from database.jobs import Desk, until_blocked
from pgonce.db.connect import Target
from pgonce.db.failure import CommitInDoubt
from pgonce.db.session import Session, default_random
from pgonce.db.transaction import Transaction
from pgonce.engine.job import Changed, change, change_on_record, versions
from pgonce.errors import ConfigurationError, DefinitionChanged
from pgonce.model.backoff import Backoff
from pgonce.model.deadline import Deadline
from pgonce.model.definition import Definition

CHANGED = Definition(key=("id",), amount="amount", ignore=("note",))


def test_a_change_is_a_version_with_who_why_and_when(desk: Desk) -> None:
    """The definition in force is the new one, the old one stays on record, and the next run uses the new one."""
    desk.run(desk.csv([("a", 1, "x")]))
    changed = change_on_record(desk.clerk, "pay", CHANGED, who="me", why="notes change by themselves")
    assert (changed.changed, changed.stored.version, changed.stored.definition.ignore) == (True, 2, ("note",))
    first, second = desk.clerk.do(lambda transaction: versions(transaction, "pay"))
    assert (first.version, first.why, first.definition.ignore) == (1, "first run", ())
    assert (second.version, second.who, second.why) == (2, "me", "notes change by themselves")
    path = desk.csv([("a", 1, "other note")])
    with pytest.raises(DefinitionChanged, match="ignore: stored note, now none"):
        desk.run(path)
    assert desk.run(path, ignore=("note",)).start.already.rows == 1


def test_the_same_change_again_adds_no_version(desk: Desk) -> None:
    """Run again, it says that nothing differs."""
    desk.run(desk.csv([("a", 1, "x")]))
    for expected in (True, False, False):
        changed = change_on_record(desk.clerk, "pay", CHANGED, who="me", why="because")
        assert (changed.changed, changed.stored.version) == (expected, 2)
    assert desk.one("select count(*) from pgonce.definition") == 2


def test_an_unknown_job_and_a_change_without_a_reason_are_refused(desk: Desk) -> None:
    """A change is on record or it is not made; a job is made by its first run."""
    with pytest.raises(ConfigurationError, match="there is no job 'pay'"):
        change_on_record(desk.clerk, "pay", CHANGED, who="me", why="because")
    desk.run(desk.csv([("a", 1, "x")]))
    with pytest.raises(ConfigurationError, match="--why"):
        change_on_record(desk.clerk, "pay", CHANGED, who="me", why="  ")
    assert desk.one("select count(*) from pgonce.definition") == 1


class LosesAnswers(Session):
    """A session whose first COMMITs are carried out by the server, but whose answers are lost on the way."""

    losses = 1

    @contextmanager
    def transaction(self, deadline: Deadline, *, commit: bool = True, snapshot: bool = False) -> Iterator[Transaction]:
        """Commit as always; then lose the answer and the connection."""
        with super().transaction(deadline, commit=commit, snapshot=snapshot) as transaction:
            yield transaction
        if commit and self.losses:
            self.losses -= 1
            self.close()
            raise CommitInDoubt("the answer was lost")


def test_a_lost_answer_of_the_commit_makes_no_second_version(desk: Desk) -> None:
    """The change is asked for again, found in force, and told as made."""
    desk.run(desk.csv([("a", 1, "x")]))
    session = LosesAnswers(
        Target(conninfo=desk.dsn, named_by="a test"), schema="pgonce", application="pgonce/test",
        random=default_random, sleep=time.sleep, backoff=Backoff(),
    )  # fmt: skip
    try:
        changed = change_on_record(replace(desk.clerk, session=session), "pay", CHANGED, who="me", why="because")
    finally:
        session.close()
    assert session.losses == 0
    assert (changed.changed, changed.stored.version) == (True, 2)
    assert desk.one("select count(*) from pgonce.definition") == 2


def test_of_two_equal_changes_at_once_one_makes_the_version(desk: Desk) -> None:
    """The second waits for the first's commit, and then finds that nothing differs."""
    desk.run(desk.csv([("a", 1, "x")]))
    first, second = desk.clerk, desk.make_clerk()

    def body(transaction: Transaction) -> int:
        stored = change(transaction, "pay", CHANGED, who="me", why="one")
        futures.append(pool.submit(change_on_record, second, "pay", CHANGED, who="you", why="two"))
        assert first.session.backend_pid is not None
        until_blocked(desk, first.session.backend_pid)
        return stored.version

    futures: list[Future[Changed]] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        assert first.do(body) == 2
        found = futures[0].result(timeout=30)
    assert (found.changed, found.stored.version) == (False, 2)
    assert desk.sql("select who from pgonce.definition order by version")[1:] == [("me",)]
