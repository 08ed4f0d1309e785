"""An operator's changes: a failed event is reopened or amended, on record, and applied once by the same input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from database.jobs import Desk, in_thread, until_blocked
from pgonce.db.failure import CommitInDoubt
from pgonce.engine import retry
from pgonce.engine.amend import Amendment, Changed, amend, reopen
from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.events import get_event
from pgonce.engine.reconcile import reconcile
from pgonce.engine.retry import reopen_failed
from pgonce.errors import ConfigurationError, EventNotFound, Permanent, RowRefused

HISTORY = "select step, action, old_status, old_amount_cents, old_attempts, why from pgonce.event_history order by step"


def settled(desk: Desk, path: Any, **options: Any) -> None:
    """E5, P1: two more runs over the same input change nothing, and the books balance."""
    before = desk.everything()
    for _ in range(2):
        desk.run(path, **options)
    assert desk.everything() == before
    found = reconcile(desk.clerk)
    assert [one.what for one in found.discrepancies] == []
    desk.sound()


def test_an_amended_amount_is_applied_once_by_the_same_input(desk: Desk) -> None:
    """I7: a negative amount fails, is amended, and the same file then applies it as amended; once."""
    path = desk.csv([("a", -500, "x"), ("b", 2, "y")])
    assert desk.run(path).exit_code == 1
    changed = amend(desk.clerk, "pay", "a", Amendment(amount="500"), why="sign")
    assert (changed.old_status, changed.run_id, changed.line) == ("failed", 1, 2)
    assert [(d.field, d.stored, d.new) for d in changed.differences] == [("amount", "-500", "500")]
    assert desk.one("select touched from pgonce.run")
    assert desk.sql("select status, attempts, error from pgonce.event where event_id = 'a'") == [("pending", 0, None)]
    report = desk.run(path)
    assert (report.exit_code, report.start.applied.rows, report.start.already.rows) == (0, 1, 1)
    assert desk.effects() == {"a": 500, "b": 2}
    assert report.run.balanced
    settled(desk, path)


def test_an_amended_payload_reaches_the_users_effect(desk: Desk) -> None:
    """The relation chunk shows the amended values, and rows with old and new values are replays, others conflicts."""
    desk.sql("create table public.account (name text primary key, balance bigint not null default 0)")
    desk.sql("insert into public.account (name) values ('ann')")
    desk.sql("alter table public.account add check (name <> 'nobody')")
    effect = """insert into public.account as a (name, balance) select account, sum(amount_cents) from chunk group by 1
        on conflict (name) do update set balance = a.balance + excluded.balance"""
    options: dict[str, Any] = {"effect": effect}
    path = desk.csv([("a", 5, "nobody"), ("b", 2, "ann")], header="id,amount,account")
    assert desk.run(path, **options).run.failed.rows == 1
    amend(desk.clerk, "pay", "a", Amendment(texts={"account": "ann"}), why="wrong name")
    assert desk.run(path, **options).exit_code == 0
    assert desk.sql("select name, balance from public.account") == [("ann", 7)]
    again = desk.run(desk.csv([("a", 5, "ann")], header="id,amount,account"), **options)
    assert again.start.already.rows == 1
    other = desk.run(desk.csv([("a", 5, "bob")], header="id,amount,account"), **options)
    assert other.start.conflict.rows == 1
    settled(desk, path, **options)
    assert desk.sql("select name, balance from public.account") == [("ann", 7)]


def test_amended_values_follow_the_rules_of_the_job(desk: Desk) -> None:
    """Scale and declared types hold for an amendment as for a row; the old payload is kept."""
    options: dict[str, Any] = {"amount_scale": 2, "types": {"n": "int", "day": "date", "extra": "json"}}
    path = desk.text('id,amount,n,day,extra,note\na,-1.00,7,2026-11-30,"{""b"":1}",x\n', name="a.csv")
    desk.run(path, **options)
    texts = {"n": "008", "day": "2026-12-01", "extra": '{"z":1,"b":[1.50]}', "note": "e\u0301"}
    amend(desk.clerk, "pay", "a", Amendment(amount="12.5", texts=texts), why="all of it")
    assert desk.sql("select amount_cents, payload from pgonce.event") == [
        (1250, '[8,"2026-12-01",{"b":[1.5],"z":1},"\u00e9"]')
    ]
    assert desk.sql("select old_amount_cents, old_payload from pgonce.event_history") == [
        (-100, '[7,"2026-11-30",{"b":1},"x"]')
    ]
    for wrong, word in (
        (Amendment(amount="1.005"), "decimal places"),
        (Amendment(texts={"n": "x"}), "column n"),
        (Amendment(texts={"day": "30.11.2026"}), "column day"),
    ):
        with pytest.raises(RowRefused, match=word):
            amend(desk.clerk, "pay", "a", wrong, why="wrong")
    assert desk.run(path, **options).exit_code == 0
    settled(desk, path, **options)


def test_an_event_with_open_fields_is_amended_by_json_values(desk: Desk) -> None:
    """NDJSON: a new field may come, a null takes one out, numbers stay numbers; ignored fields are not payload."""
    path = desk.ndjson([{"id": "a", "amount": -1, "n": 7, "gone": "x", "at": "now"}])
    desk.run(path, ignore=("at",))
    amend(desk.clerk, "pay", "a", Amendment(amount="1", values={"n": 8, "gone": None, "new": [1]}), why="fields")
    assert desk.one("select payload from pgonce.event") == '{"n":8,"new":[1]}'
    with pytest.raises(Permanent, match="not part of the payload"):
        amend(desk.clerk, "pay", "a", Amendment(texts={"at": "then"}), why="ignored")
    assert desk.run(path, ignore=("at",)).exit_code == 0
    settled(desk, path, ignore=("at",))


def test_an_event_amended_twice_is_applied_as_last_amended(desk: Desk) -> None:
    """Every payload it ever had is a replay of it; the totals of the run stay those that were read."""
    path = desk.csv([("a", -1, "x"), ("b", 2, "y")])
    desk.run(path)
    amend(desk.clerk, "pay", "a", Amendment(amount="3"), why="first")
    amend(desk.clerk, "pay", "a", Amendment(amount="4", texts={"note": "z"}), why="second")
    report = desk.run(path)
    assert desk.effects() == {"a": 4, "b": 2}
    assert (report.run.read.cents, report.run.applied.cents) == (1, 1)
    assert [row[:4] for row in desk.sql(HISTORY)] == [
        (1, "amended", "failed", -1), (2, "amended", "pending", 3), (3, "applied", "pending", 4)
    ]  # fmt: skip
    assert desk.run(desk.csv([("a", 3, "x")])).start.already.rows == 1
    settled(desk, path)


def test_an_event_is_amended_by_the_definition_its_own_row_was_read_by(desk: Desk) -> None:
    """After the job changed, an old event still has its old columns."""
    desk.run(desk.csv([("a", -1, "x")]))
    desk.sql(
        "insert into pgonce.definition (job, version, spec, who, why) select job, 2, "
        "jsonb_set(spec, '{columns}', '[\"other\"]'), 'me', 'test' from pgonce.definition"
    )
    desk.sql("update pgonce.job set version = 2")
    amend(desk.clerk, "pay", "a", Amendment(texts={"note": "y"}), why="old column")
    assert desk.one("select payload from pgonce.event") == '["y"]'


@pytest.mark.parametrize(
    ("amendment", "word"),
    [
        (Amendment(texts={"id": "b"}), "identity"),
        (Amendment(texts={"shop": "n"}), "identity"),
        (Amendment(texts={"amount": "1"}), "--amount"),
        (Amendment(texts={"seen": "1"}), "not part of the payload; it has 'note'"),
        (Amendment(texts={"nope": "1"}), "not part of the payload"),
        (Amendment(amount="-2"), "below zero"),
        (Amendment(amount="-1"), "below zero"),
        (Amendment(texts={"note": "x"}), "says so already"),
        (Amendment(), "says so already"),
    ],
)
def test_what_cannot_be_amended_is_refused_and_changes_nothing(desk: Desk, amendment: Amendment, word: str) -> None:
    """Identity never changes; no change is no change; nothing is recorded of what was refused."""
    path = desk.csv([("a", "n", -1, "now", "x")], header="id,shop,amount,seen,note")
    desk.run(path, source_column="shop", ignore=("seen",))
    before = desk.everything()
    with pytest.raises(Permanent, match=word):
        amend(desk.clerk, "pay", "a", amendment, why="try", source="n")
    assert desk.everything() == before
    assert not desk.one("select touched from pgonce.run")


def test_a_job_without_an_amount_has_none_to_amend(desk: Desk) -> None:
    """An amount that no input brings is not invented."""
    desk.sql("create table public.seen (id text check (id <> 'a'))")
    desk.run(desk.csv([("a",)], header="id"), amount=None, effect="insert into public.seen select event_id from chunk")
    with pytest.raises(Permanent, match="no amount"):
        amend(desk.clerk, "pay", "a", Amendment(amount="1"), why="try")


@pytest.mark.parametrize("status", ["completed", "pruned"])
def test_a_final_event_is_never_changed(desk: Desk, status: str) -> None:
    """A completed or pruned event has its effect in the ledger: book a compensating event."""
    desk.run(desk.csv([("a", 1, "x")]))
    if status == "pruned":
        desk.sql("update pgonce.event set status = 'pruned', payload = null, fingerprint = '\\x00'::bytea")
    before = desk.everything()
    with pytest.raises(Permanent, match="compensating event"):
        amend(desk.clerk, "pay", "a", Amendment(amount="2"), why="try")
    with pytest.raises(Permanent, match="compensating event"):
        reopen(desk.clerk, "pay", "a", why="try")
    assert desk.everything() == before


def test_a_reopened_event_is_tried_again_by_the_same_input(desk: Desk) -> None:
    """I7: what failed for the effect's reason is applied once that reason is gone."""
    desk.sql("create table public.ledger (id text, cents bigint constraint small check (cents < 10))")
    options = {"effect": "insert into public.ledger select event_id, amount_cents from chunk"}
    path = desk.csv([("a", 50, "x"), ("b", 2, "y")])
    assert desk.run(path, **options).run.failed.rows == 1
    assert desk.run(path, **options).run.failed.rows == 1
    desk.sql("alter table public.ledger drop constraint small")
    changed = reopen(desk.clerk, "pay", "a", why="limit raised")
    assert changed.old_status == "failed"
    assert "small" in (changed.old_error or "")
    [(step, action, old_status, cents, attempts, why)] = desk.sql(HISTORY)
    assert (step, action, old_status, cents, why) == (1, "reopened", "failed", 50, "limit raised")
    assert attempts == changed.old_attempts > 0
    report = desk.run(path, **options)
    assert (report.exit_code, report.start.applied.rows) == (0, 1)
    assert desk.sql("select id, cents from public.ledger order by 1") == [("a", 50), ("b", 2)]
    settled(desk, path, **options)
    assert desk.one("select count(*) from public.ledger") == 2


def test_another_input_that_names_a_reopened_event_applies_it_too(desk: Desk) -> None:
    """A replayed row of a failed event is read again, since its answer may have changed."""
    first, second = desk.csv([("a", -1, "x")]), desk.csv([("a", -1, "x"), ("b", 2, "y")])
    desk.run(first)
    assert desk.run(second).run.failed.rows == 1
    amend(desk.clerk, "pay", "a", Amendment(amount="1"), why="sign")
    assert desk.run(second).start.applied.rows == 1
    assert desk.effects() == {"a": 1, "b": 2}
    settled(desk, second)
    settled(desk, first)


def test_a_pending_event_is_reopened_only_when_its_attempts_are_used_up(desk: Desk) -> None:
    """R4: used up needs a grant, on record; below the budget there is nothing to grant."""
    path = desk.csv([("a", -1, "x")])
    desk.run(path)
    reopen(desk.clerk, "pay", "a", why="first")
    with pytest.raises(Permanent, match="pending, with 0 of 9 attempts"):
        reopen(desk.clerk, "pay", "a", why="second")
    desk.sql("update pgonce.event set attempts = 9")
    reopen(desk.clerk, "pay", "a", why="third")
    assert desk.one("select attempts from pgonce.event") == 0
    assert [row[2:] for row in desk.sql(HISTORY)] == [("failed", -1, 1, "first"), ("pending", -1, 9, "third")]


@pytest.mark.parametrize("action", ["amended", "reopened"])
def test_the_same_change_again_is_found_done(desk: Desk, action: str) -> None:
    """R2: who was killed before the answer came does the same again; for another reason it is another change."""

    def change(why: str) -> Changed:
        if action == "reopened":
            return reopen(desk.clerk, "pay", "a", why=why)
        return amend(desk.clerk, "pay", "a", Amendment(amount="5", texts={"note": "y"}), why=why)

    desk.run(desk.csv([("a", -1, "x")]))
    first = change("typo")
    before = desk.everything()
    again = change("typo")
    assert first.changed
    assert again == replace(first, changed=False)
    with pytest.raises(Permanent):
        change("another")
    assert desk.everything() == before


def test_an_event_that_failed_again_since_is_reopened_again(desk: Desk) -> None:
    """For the same reason too: it does not wait to be tried any more."""
    path = desk.csv([("a", -1, "x")])
    for step in (1, 2):
        desk.run(path)
        assert reopen(desk.clerk, "pay", "a", why="again").changed
        assert desk.one("select count(*) from pgonce.event_history") == step


def test_a_change_needs_a_reason_and_an_event(desk: Desk) -> None:
    """No reason, a blank one or an endless one: refused; an id that is not stored: not found."""
    desk.run(desk.csv([("a", -1, "x")]))
    for why in ("", "  ", "x" * 5000):
        with pytest.raises(ConfigurationError, match="say why"):
            reopen(desk.clerk, "pay", "a", why=why)
    with pytest.raises(EventNotFound):
        reopen(desk.clerk, "pay", "nope", why="try")
    with pytest.raises(EventNotFound, match="another source: the empty one"):
        amend(desk.clerk, "pay", "a", Amendment(amount="1"), why="try", source="north")


def test_all_failed_events_are_reopened_in_small_transactions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """--all-failed reopens those of the run or job that is named, any number of them, and says how many."""
    monkeypatch.setattr(retry, "CHANGED_AT_A_TIME", 2)
    first = desk.csv([(f"a{n}", -1, "x") for n in range(5)] + [("ok", 1, "x")])
    second = desk.csv([("b", -1, "x")])
    desk.run(first)
    desk.run(second)
    assert reopen_failed(desk.clerk, "pay", why="all of run 1", run_id=1).reopened == 5
    assert desk.sql("select run_id, touched from pgonce.run order by 1") == [(1, True), (2, False)]
    assert desk.statuses() == {**{f"a{n}": "pending" for n in range(5)}, "ok": "completed", "b": "failed"}
    assert reopen_failed(desk.clerk, "pay", why="the rest").reopened == 1
    assert reopen_failed(desk.clerk, "pay", why="the rest").reopened == 0
    assert desk.one("select count(*) from pgonce.event_history where action = 'reopened'") == 6
    assert desk.run(first).run.failed.rows == 5
    settled(desk, first)


@contextmanager
def losing_the_answer(clerk: Clerk, *, commits: bool, then: Any = None) -> Iterator[None]:
    """Lose the answer of the next COMMIT: it took place or not, the connection is gone, and the world goes on."""
    session = clerk.session
    real = session._commit
    lost: list[bool] = []

    def commit(connection: psycopg.Connection) -> None:
        if lost:
            real(connection)
            return
        lost.append(True)
        if commits:
            real(connection)
        session.close()
        if then is not None:
            then()
        raise CommitInDoubt("COMMIT was sent and its outcome is not known")

    session._commit = commit
    try:
        yield
        assert lost
    finally:
        session._commit = real


@pytest.mark.parametrize("commits", [True, False])
def test_a_change_whose_commit_is_in_doubt_is_made_once(desk: Desk, commits: bool) -> None:
    """R3: after a lost answer the change is found by the step it wrote, or made; in both cases it stands once."""
    path = desk.csv([("a", -1, "x"), ("b", -2, "x"), ("c", -3, "x")])
    desk.run(path)
    clerk = desk.make_clerk()
    with losing_the_answer(clerk, commits=commits):
        assert amend(clerk, "pay", "a", Amendment(amount="1"), why="sign").old_status == "failed"
    with losing_the_answer(clerk, commits=commits):
        assert reopen(clerk, "pay", "b", why="again").old_status == "failed"
    assert desk.sql("select event_id, step, action, old_status from pgonce.event_history order by 1") == [
        ("a", 1, "amended", "failed"), ("b", 1, "reopened", "failed")
    ]  # fmt: skip
    with losing_the_answer(clerk, commits=commits):
        assert reopen_failed(clerk, "pay", why="all").reopened == 1
    assert desk.statuses() == dict.fromkeys("abc", "pending")


def test_a_change_in_doubt_is_known_although_the_event_was_applied_since(desk: Desk) -> None:
    """R3: between the lost COMMIT and the look at it, a run applied the event: the change still took place, once."""
    path = desk.csv([("a", -1, "x")])
    desk.run(path)
    clerk = desk.make_clerk()
    with losing_the_answer(clerk, commits=True, then=lambda: desk.run(path)):
        assert amend(clerk, "pay", "a", Amendment(amount="1"), why="sign").old_status == "failed"
    assert [row[1] for row in desk.sql(HISTORY)] == ["amended", "applied"]
    assert desk.effects() == {"a": 1}
    settled(desk, path)


def test_a_change_waits_for_who_holds_the_event_and_then_looks(desk: Desk) -> None:
    """E4: the row is locked first and looked at afterwards, so an event completed meanwhile is not amended."""
    desk.run(desk.csv([("a", -1, "x")]))
    reopen(desk.clerk, "pay", "a", why="again")
    with psycopg.connect(desk.dsn) as holder:
        holder.execute("update pgonce.event set status = 'completed', adopted = true")
        clerk = desk.make_clerk()
        with in_thread(amend, clerk, "pay", "a", Amendment(amount="1"), why="late") as change:
            until_blocked(desk, holder.info.backend_pid)
            holder.commit()
        assert isinstance(change.exception(), Permanent)
    assert desk.one("select amount_cents from pgonce.event") == -1
    assert len(desk.sql(HISTORY)) == 1


def test_who_changed_an_event_is_kept(desk: Desk) -> None:
    """I7: who, when and why."""
    desk.run(desk.csv([("a", -1, "x")]))
    reopen(desk.clerk, "pay", "a", why="again")
    [step] = desk.clerk.do(lambda tx: get_event(tx, "pay", "a"), commit=False).history
    assert "@" in step.who
    assert (step.why, step.recorded_at.tzinfo is not None) == ("again", True)
