"""Looking at stored events: what one says, where it came from, and what is said when there is none."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from database.jobs import Desk
from pgonce.engine.amend import Amendment, amend
from pgonce.engine.events import Event, get_event, list_events
from pgonce.errors import ConfigurationError, EventNotFound, RowRefused


def look(desk: Desk, event_id: str, *, job: str = "pay", source: str = "") -> Event:
    """Read an event."""
    return desk.clerk.do(lambda tx: get_event(tx, job, event_id, source=source), commit=False)


def test_an_event_tells_where_it_came_from_and_what_it_says(desk: Desk) -> None:
    """events get: input, line, run, start, state, amount, effect, and the payload by its columns' names."""
    desk.run(desk.csv([("a", 5, "x"), ("b", 7, "y")], name="pay.csv"), types={"note": "text"})
    event = look(desk, "b")
    listed = event.listed
    assert (listed.status, listed.amount_cents, listed.attempts, listed.adopted) == ("completed", 7, 1, False)
    assert (listed.run_id, listed.epoch, listed.line) == (1, 1, 3)
    assert event.input_name is not None
    assert event.input_name.endswith("pay.csv")
    assert (event.payload, event.effect_cents, event.kind, event.history, event.findings) == (
        {"note": "y"}, 7, "apply", (), ()
    )  # fmt: skip
    assert json.loads(json.dumps(event.as_dict()))["payload"] == {"note": "y"}


def test_an_adopted_event_has_no_effect(desk: Desk) -> None:
    """F5: what an older program applied is completed and has no effect."""
    desk.run(desk.csv([("a", 5, "x")]), kind="adopt")
    event = look(desk, "a")
    assert (event.listed.adopted, event.effect_cents, event.kind) == (True, None, "adopt")


def test_exact_numbers_of_a_payload_stay_exact(desk: Desk) -> None:
    """I5: a payload is read back without a float."""
    desk.run(desk.text('{"id":"a","amount":1,"rate":0.10,"n":123456789012345678901}\n', name="a.ndjson"))
    assert look(desk, "a").payload == {"rate": Decimal("0.1"), "n": 123456789012345678901}


def test_the_history_and_the_conflicts_of_an_event_are_told(desk: Desk) -> None:
    """An event that failed, conflicted, was amended and applied shows all of it, in order."""
    path = desk.csv([("a", -5, "x"), ("a", 9, "other")])
    desk.run(path)
    amend(desk.clerk, "pay", "a", Amendment(amount="5"), why="a sign too many")
    desk.run(path)
    event = look(desk, "a")
    assert [(step.action, step.old_status, step.old_amount_cents) for step in event.history] == [
        ("amended", "failed", -5), ("applied", "pending", 5)
    ]  # fmt: skip
    assert event.history[0].why == "a sign too many"
    assert event.history[0].old_payload == {"note": "x"}
    assert "below zero" in (event.history[0].old_error or "")
    assert (event.history[1].run_id, event.history[1].epoch) == (1, 2)
    assert [(named.line, named.kind, named.amount_cents) for named in event.findings] == [(3, "conflict", 9)]
    assert (event.effect_cents, event.listed.status) == (5, "completed")


def test_a_pruned_event_is_told_by_its_fingerprint(desk: Desk) -> None:
    """I8: identity, amount and dates stay when the payload is gone."""
    desk.run(desk.csv([("a", 5, "x")]))
    desk.sql("update pgonce.event set status = 'pruned', payload = null, fingerprint = '\\xab'::bytea")
    event = look(desk, "a")
    assert (event.listed.status, event.payload, event.fingerprint, event.effect_cents) == ("pruned", None, "ab", 5)


def test_an_id_of_several_columns_may_be_written_with_blanks(desk: Desk) -> None:
    """The JSON array of an id is known by its texts, however it is spaced."""
    desk.run(desk.csv([("AA", 1, 10)], header="carrier,flight,amount"), key=("carrier", "flight"))
    assert look(desk, '[ "AA", "1" ]').listed.event_id == '["AA","1"]'
    assert look(desk, '["AA",1]').listed.event_id == '["AA","1"]'


def test_an_unknown_id_of_several_columns_is_answered_with_how_ids_are_written(desk: Desk) -> None:
    """Who writes AA,1 for the id of two columns learns the form it has."""
    desk.run(desk.csv([("AA", 1, 10)], header="carrier,flight,amount"), key=("carrier", "flight"))
    with pytest.raises(EventNotFound, match=r"'\[\"carrier\",\"flight\"\]'") as caught:
        look(desk, "AA,1")
    assert caught.value.event_id == "AA,1"
    with pytest.raises(EventNotFound):
        look(desk, '["AA"]')


def test_an_unknown_id_is_answered_with_what_is_not_the_same(desk: Desk) -> None:
    """Case, zeros and blanks count; the message says so and names the column."""
    desk.run(desk.csv([("7", 1, "x")]))
    for near in ("007", " 7", "7.0"):
        with pytest.raises(EventNotFound, match=r"column 'id'.*7, 007 and ' 7' are three ids"):
            look(desk, near)


def test_an_id_that_stands_under_another_source_is_pointed_to(desk: Desk) -> None:
    """Who forgets --source is told which sources have the id."""
    desk.run(desk.csv([("7", 1, "x")]), source="north")
    with pytest.raises(EventNotFound, match="under another source: 'north'"):
        look(desk, "7")
    assert look(desk, "7", source="north").listed.source == "north"


def test_an_unknown_job_and_an_impossible_id_are_refused(desk: Desk) -> None:
    """A job that is not stored is a mistake of configuration; text that cannot be stored is refused."""
    with pytest.raises(ConfigurationError, match="no job 'pay'"):
        look(desk, "7")
    desk.run(desk.csv([("7", 1, "x")]))
    with pytest.raises(RowRefused, match="surrogate"):
        look(desk, "\udcff")


def test_events_are_listed_by_state_and_run(desk: Desk) -> None:
    """events list: filters by state and by run, bounded, in the order of identity."""
    desk.run(desk.csv([("b", 2, "x"), ("a", -1, "x")]))
    desk.run(desk.csv([("d", -4, "x"), ("c", 3, "x")]))

    def ids(**asked: object) -> list[str]:
        return [event.event_id for event in desk.clerk.do(lambda tx: list_events(tx, "pay", **asked), commit=False)]

    assert ids() == ["a", "b", "c", "d"]
    assert ids(status="failed") == ["a", "d"]
    assert ids(status="failed", run_id=2) == ["d"]
    assert ids(run_id=1, limit=1) == ["a"]
    with pytest.raises(ConfigurationError, match="no state"):
        ids(status="done")
    with pytest.raises(ConfigurationError, match="above zero"):
        ids(limit=0)
