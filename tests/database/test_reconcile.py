"""The books balance, or what does not is named: every discrepancy is planted once and has to be found."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from database.jobs import Desk, Watching, in_thread, until_blocked
from pgonce.engine import reconcile as module
from pgonce.engine import run as running
from pgonce.engine.amend import Amendment, amend, reopen
from pgonce.engine.counting import UNIDENTIFIED
from pgonce.engine.reconcile import NAMED_MAX, Reconciliation, reconcile
from pgonce.errors import ConfigurationError, Interrupted
from pgonce.model.outcome import Tally

# A planted statement writes @ for the schema, to stay on a line.
UNGUARDED = "alter table pgonce.{0} disable trigger all; {1}; alter table pgonce.{0} enable trigger all"

UNDONE = """delete from @effect where event_id = 'd';
update @event set status = 'failed' where event_id = 'd'"""


def kinds(found: Reconciliation) -> set[str]:
    """Return the kinds of discrepancies found."""
    return {one.kind for one in found.discrepancies}


def everyday(desk: Desk) -> None:
    """Leave runs of every sort: good and bad rows, replays, adopted and amended events, two jobs, a reopened event."""
    rows = [("a", 5, "x"), ("b", -7, "y"), ("", 1, "no id"), ("a", 6, "conflict"), ("a", 5, "x"), ("c", "x", "bad")]
    path = desk.csv(rows)
    desk.run(path, chunk_rows=2)
    desk.run(desk.csv([("a", 5, "x"), ("b", -7, "y"), ("d", 4, "z")]))
    desk.run(desk.csv([("h", 100, "old"), ("a", 5, "x")]), kind="adopt")
    desk.run(desk.ndjson([{"id": "n", "amount": 3}]), job="json", source="north")
    amend(desk.clerk, "pay", "b", Amendment(amount="7"), why="sign")
    desk.run(path)
    desk.run(desk.csv([("e", -9, "x")]))
    reopen(desk.clerk, "pay", "e", why="later")


def test_what_everyday_work_leaves_balances(desk: Desk) -> None:
    """P1: per run, per source, in rows and in cents; and a look at it changes nothing."""
    everyday(desk)
    before = desk.everything()
    found = reconcile(desk.clerk)
    assert [one.what for one in found.discrepancies] == []
    assert found.balanced
    assert found.confirmed == ()
    assert desk.everything() == before
    first = found.runs[0].counts
    assert (first.read, first.accounted) == (Tally(6, 9), Tally(6, 9))
    assert {name: tally.rows for name, tally in vars_of(first).items() if tally.rows} == {
        "read": 6, "applied": 2, "already": 1, "conflict": 1, "rejected": 2
    }  # fmt: skip
    [north, pay] = found.sources
    assert (north.source, north.effects, pay.effects) == ("north", Tally(1, 3), Tally(3, 16))
    assert (pay.events["adopted"], pay.events["pending"]) == (Tally(1, 100), Tally(1, -9))


def vars_of(counts: Any) -> dict[str, Tally]:
    """Return the tallies of counts by their names."""
    return {name: getattr(counts, name) for name in counts.__slots__}


@pytest.mark.parametrize(
    ("table", "planted", "kind", "named"),
    [
        ("effect", "delete from @effect where event_id = 'a'", "effect_missing", "'a'"),
        ("effect", "insert into @effect values (1, 'pay', '', 'ghost')", "effect_without_event", "'ghost'"),
        ("effect", "insert into @effect values (100, 'pay', '', 'h')", "effect_of_adopted_event", "'h'"),
        ("effect", "insert into @effect values (9, 'pay', '', 'e')", "effect_of_open_event", "'e': the event is"),
        (
            "effect",
            "update @effect set amount_cents = 6 where event_id = 'a'",
            "effect_amount_differs",
            "'a': the event says 5 cents and its effect 6",
        ),
        ("effect", "delete from @effect where event_id = 'a'", "source_unbalanced", "3 completed events worth 16"),
        ("event", "update @event set amount_cents = 4 where event_id = 'a'", "effect_amount_differs", "'a'"),
        ("event", "update @event set amount_cents = 4 where event_id = 'a'", "run_unbalanced", "run 1 read 6 rows"),
        ("event", "update @event set run_id = 99 where event_id = 'a'", "run_missing", "'a': its run 99"),
        ("event", "update @event set run_id = 99 where event_id = 'a'", "run_unbalanced", "run 1"),
        ("event", "update @event set run_id = 4 where event_id = 'a'", "run_of_another_job", "'a': its run 4"),
        ("event", "update @event set line = 999 where event_id = 'a'", "line_not_read", "'a': it claims line 999"),
        ("event", "update @event set epoch = 9 where event_id = 'a'", "line_not_read", "start 9 of run 1"),
        ("event", "update @event set line = 3 where event_id = 'a'", "line_counted_twice", "line 3 of run 1"),
        ("event", "update @event set line = 5 where event_id = 'a'", "line_counted_twice", "a conflict finding"),
        ("event", UNDONE, "outcome_changed", "run 2 finished with"),
        ("event", "delete from @event where event_id = 'd'", "effect_without_event", "'d'"),
        ("finding", "delete from @finding where line = 4", "run_unbalanced", "run 1"),
        ("start", "update @start set already = already + 1 where run_id = 2", "run_unbalanced", "run 2"),
        ("start", "update @start set cents_read = 1 where run_id = 2", "run_unbalanced", "worth 1 cents"),
        ("start", "delete from @start where run_id = 2", "start_missing", "run 2"),
        ("start", "delete from @start where run_id = 1 and epoch = 1", "start_missing", "run 1"),
        ("start", "update @start set position = 1 where run_id = 1 and epoch = 2", "position_went_back", "start 2"),
        ("start", "update @start set position = 9999 where run_id = 2", "position_past_input", "byte 9999"),
        ("start", "update @start set position = 1 where run_id = 2", "end_not_reached", "byte 1 of"),
        ("start", "update @start set ended_at = null where run_id = 1", "old_start_not_ended", "start 1"),
        ("run", "update @run set epoch = 7 where run_id = 2", "start_missing", "at start 7"),
    ],
)
def test_what_was_planted_is_found_and_named(desk: Desk, table: str, planted: str, kind: str, named: str) -> None:
    """P1: a discrepancy of each kind, made past the guards, is found, says which event or run, and what to do."""
    everyday(desk)
    both = planted if table == "effect" else UNGUARDED.format("effect", planted)
    for statement in UNGUARDED.format(table, both).replace("@", "pgonce.").split(";"):
        desk.sql(statement)
    found = reconcile(desk.clerk)
    assert not found.balanced
    of_kind = [one for one in found.discrepancies if one.kind == kind]
    assert any(named in one.what for one in of_kind), [one.what for one in found.discrepancies]
    assert all(one.remedy for one in of_kind)
    assert found.confirmed == ()


def test_other_jobs_and_runs_are_not_looked_at_unless_asked_for(desk: Desk) -> None:
    """--job and --run narrow what is checked; an unknown one is refused."""
    everyday(desk)
    desk.sql(UNGUARDED.format("effect", "insert into pgonce.effect values (100, 'pay', '', 'h')"))
    assert kinds(reconcile(desk.clerk, job="pay")) == {"effect_of_adopted_event", "source_unbalanced"}
    assert kinds(reconcile(desk.clerk, run_id=3)) == {"effect_of_adopted_event", "source_unbalanced"}
    assert reconcile(desk.clerk, job="json").balanced
    assert [run.run_id for run in reconcile(desk.clerk, run_id=2).runs] == [2]
    assert reconcile(desk.clerk, job="pay", run_id=2).balanced
    for wrong in ({"job": "nope"}, {"run_id": 99}, {"job": "json", "run_id": 1}):
        with pytest.raises(ConfigurationError, match="there is no"):
            reconcile(desk.clerk, **wrong)


def test_many_discrepancies_are_counted_and_some_are_named(desk: Desk) -> None:
    """A thousand times one cause is not a thousand lines."""
    count = NAMED_MAX + 50
    desk.run(desk.csv([(n, 1, "x") for n in range(count)]), kind="adopt")
    desk.sql(
        UNGUARDED.format(
            "effect", "insert into pgonce.effect select amount_cents, job, source, event_id from pgonce.event"
        )
    )
    found = reconcile(desk.clerk)
    named = [one for one in found.discrepancies if one.kind == "effect_of_adopted_event"]
    assert (len(named), found.found) == (NAMED_MAX, count + 1)


def test_a_run_that_is_going_on_or_was_stopped_balances(desk: Desk) -> None:
    """Every committed chunk leaves a state that balances: between two chunks, and after a stop."""
    path = desk.csv([(n, n if n % 3 else -n, "x") for n in range(10)] + [("", 1, "no id"), (0, 0, "x")])
    other, seen = desk.make_clerk(), list[Reconciliation]()
    watching = Watching(lambda _: seen.append(reconcile(other)))
    with pytest.raises(Interrupted):
        desk.run(path, chunk_rows=2, observer=watching, interrupted=lambda: len(seen) == 3)
    assert [found.runs[0].counts.read.rows for found in seen] == [2, 4, 6]
    desk.run(path, chunk_rows=2, observer=watching)
    assert [found.runs[0].counts.read.rows for found in seen] == [2, 4, 6, 8, 10, 12, 12]
    assert [one.what for found in (*seen, reconcile(other)) for one in found.discrepancies] == []


def test_what_is_committed_while_reconcile_looks_is_not_seen_by_half(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is seen in one snapshot: an event reopened between two of its statements is no false alarm."""
    desk.run(desk.csv([("a", -1, "x")]))
    other = desk.make_clerk()
    real = module.count_run

    def count_run(*arguments: Any) -> Any:
        if desk.statuses() == {"a": "failed"}:
            reopen(other, "pay", "a", why="meanwhile")
        return real(*arguments)

    monkeypatch.setattr(module, "count_run", count_run)
    found = reconcile(desk.clerk)
    assert desk.statuses() == {"a": "pending"}
    assert [one.what for one in found.discrepancies] == []
    assert found.runs[0].counts.failed.rows == 1


def test_an_event_reopened_while_its_run_finishes_is_no_alarm_and_not_forgotten(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change would fall between counting the outcome and storing it: it waits, and the input is read again."""
    desk.sql("create table public.ledger (id text, cents bigint constraint small check (cents < 10))")
    options = {"effect": "insert into public.ledger select event_id, amount_cents from chunk"}
    path, other = desk.csv([("a", 50, "x")]), desk.make_clerk()
    real, waiting = running.replayed_open, ExitStack()

    def meanwhile(*arguments: Any) -> int:
        if desk.statuses() == {"a": "failed"}:
            desk.sql("alter table public.ledger drop constraint small")
            waiting.enter_context(in_thread(lambda: reopen(other, "pay", "a", why="meanwhile")))
            until_blocked(desk, desk.clerk.session.backend_pid or 0)
        return real(*arguments)

    monkeypatch.setattr(running, "replayed_open", meanwhile)
    with waiting:
        desk.run(path, **options)
    assert desk.statuses() == {"a": "pending"}
    assert desk.sql("select touched from pgonce.run") == [(True,)]
    report = desk.run(path, **options)
    assert (report.shortcut, report.exit_code, desk.effects()) == (False, 0, {"a": 50})
    assert [one.what for one in reconcile(desk.clerk).discrepancies] == []


@pytest.mark.parametrize("outcome", ["applied", "failed"])
def test_a_pending_event_that_another_run_settled_is_no_alarm(desk: Desk, outcome: str) -> None:
    """A run that finished with a pending event counts it differently once another run has settled it."""
    desk.sql("create table public.ledger (id text, cents bigint constraint small check (cents < 10))")
    options = {"effect": "insert into public.ledger select event_id, amount_cents from chunk"}
    path = desk.csv([("a", 50, "x")])
    desk.run(path, **options)
    desk.sql("update pgonce.event set status = 'pending', attempts = 9")
    assert desk.run(path, **options).exit_code == 75
    desk.sql("update pgonce.event set attempts = 0")
    if outcome == "applied":
        desk.sql("alter table public.ledger drop constraint small")
    desk.run(desk.csv([("a", 50, "x"), ("b", 1, "y")]), **options)
    found = reconcile(desk.clerk)
    assert getattr(found.runs[0].counts, outcome).rows == 1
    assert [one.what for one in found.discrepancies] == []


def test_after_a_restore_the_first_answer_is_repeated_only_once_reconcile_passed(desk: Desk) -> None:
    """F2: finished runs of another database are read again, until everything balances in this one."""
    paths = [desk.csv([("a", 1, "x")]), desk.csv([("b", 2, "x")])]
    for path in paths:
        assert not desk.run(path).shortcut
    desk.sql("update pgonce.run set outcome = jsonb_set(outcome, '{cluster}', '\"7/8/9\"')")
    found = reconcile(desk.clerk, run_id=1)
    assert (found.balanced, found.confirmed) == (True, (1,))
    assert [desk.run(path).shortcut for path in paths] == [True, False]
    desk.sql("update pgonce.run set outcome = jsonb_set(outcome, '{cluster}', '\"7/8/9\"')")
    assert reconcile(desk.clerk).confirmed == (1, 2)
    assert reconcile(desk.clerk).confirmed == ()
    assert [desk.run(path).shortcut for path in paths] == [True, True]


def test_a_run_is_not_confirmed_while_something_is_found(desk: Desk) -> None:
    """F2: a restored database that does not balance keeps having its inputs read again."""
    path = desk.csv([("a", 1, "x")])
    desk.run(path)
    desk.run(desk.csv([("h", 2, "x")]), kind="adopt")
    desk.sql("update pgonce.run set outcome = jsonb_set(outcome, '{cluster}', '\"7/8/9\"')")
    desk.sql(UNGUARDED.format("effect", "insert into pgonce.effect values (2, 'pay', '', 'h')"))
    assert reconcile(desk.clerk).confirmed == ()
    assert not desk.run(path).shortcut


def test_a_run_is_not_confirmed_where_the_database_cannot_be_known_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that may not ask which database it is in gets no confirmation that could never hold."""
    desk.run(desk.csv([("a", 1, "x")]))
    monkeypatch.setattr(module, "cluster_identity", lambda _: f"{UNIDENTIFIED}once")
    found = reconcile(desk.clerk)
    assert (found.balanced, found.confirmed) == (True, ())


def test_an_empty_database_balances(desk: Desk) -> None:
    """Nothing read, nothing owed."""
    found = reconcile(desk.clerk)
    assert (found.balanced, found.runs, found.sources) == (True, (), ())
