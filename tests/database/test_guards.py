"""The walls behind the design: what the database itself refuses, whoever asks."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from database.jobs import Desk, refer
from pgonce.errors import ConfigurationError, InvariantBroken

INSERT = "insert into pgonce.effect (job, source, event_id, amount_cents) values "

REFUSED_OF_EVENTS = [
    "delete from pgonce.event",
    "delete from pgonce.event where false",
    "truncate pgonce.event cascade",
    "update pgonce.event set event_id = 'other' where event_id = '1'",
    "update pgonce.event set event_id = 'other' where event_id = '3'",
    "update pgonce.event set job = 'other' where event_id = '1'",
    "update pgonce.event set source = 'other' where event_id = '1'",
    "update pgonce.event set amount_cents = 1 where event_id = '1'",
    "update pgonce.event set payload = '[]' where event_id = '1'",
    "update pgonce.event set adopted = true where event_id = '1'",
    "update pgonce.event set status = 'pending' where event_id = '1'",
    "update pgonce.event set status = 'failed' where event_id = '1'",
    "update pgonce.event set status = 'completed' where event_id = '2'",
    "update pgonce.event set amount_cents = 1 where event_id = '2'",
    "update pgonce.event set fingerprint = 'x' where event_id = '2'",
    "merge into pgonce.event as e using (select 1) as x on e.event_id = '1' when matched then delete",
]
REFUSED_OF_EFFECTS = [
    "delete from pgonce.effect",
    "delete from pgonce.effect where false",
    "truncate pgonce.effect",
    "update pgonce.effect set amount_cents = 1",
    "update pgonce.effect set event_id = '3' where event_id = '1'",
    """insert into pgonce.effect (job, source, event_id, amount_cents) values ('pay', '', '1', 0)
    on conflict (job, source, event_id) do update set amount_cents = 0""",
]


@pytest.fixture
def three(desk: Desk) -> Desk:
    """Give a desk with event 1 completed, 2 pruned, and 3 failed."""
    desk.run(desk.csv([(1, 100, "x"), (2, 50, "y"), (3, -1, "z")]))
    desk.sql("update pgonce.event set status = 'pruned', payload = null, fingerprint = '\\x01' where event_id = '2'")
    return desk


@pytest.mark.parametrize("role", ["origin", "local", "replica"])
@pytest.mark.parametrize("statement", REFUSED_OF_EVENTS + REFUSED_OF_EFFECTS)
def test_events_are_kept_and_effects_are_immutable_under_every_replication_role(
    three: Desk, statement: str, role: str
) -> None:
    """E3: deletes, truncates and changes of key, amount or payload are refused, also with session_replication_role."""
    before = three.everything()
    with psycopg.connect(three.dsn) as connection:
        connection.execute(f"set session_replication_role = {role}")
        with pytest.raises(errors.FeatureNotSupported, match="is refused") as caught:
            connection.execute(statement)
        assert caught.value.diag.message_hint is not None
    assert three.everything() == before


def test_the_guards_are_the_same_beside_a_foreign_key(three: Desk) -> None:
    """E3: the reference is an option, the guards are not."""
    refer(three, "row")
    before = three.everything()
    for statement in REFUSED_OF_EVENTS + REFUSED_OF_EFFECTS:
        with pytest.raises(errors.FeatureNotSupported, match="is refused"):
            three.sql(statement)
    assert three.everything() == before


@pytest.mark.parametrize("statement", REFUSED_OF_EVENTS[:1] + REFUSED_OF_EFFECTS[:1])
def test_a_role_with_every_right_on_the_tables_is_refused_too(three: Desk, statement: str) -> None:
    """E3: the guards hold for a role that is neither owner nor superuser."""
    role = three.one("select 'pgonce_writer_' || oid from pg_database where datname = current_database()")
    three.sql(f"create role {role}")
    try:
        three.sql(f"grant usage on schema pgonce to {role}; grant all on all tables in schema pgonce to {role}")
        with psycopg.connect(three.dsn) as connection:
            connection.execute(f"set role {role}")
            with pytest.raises(errors.FeatureNotSupported):
                connection.execute(statement)
    finally:
        three.sql(f"drop owned by {role}; drop role {role}")


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        (INSERT + "('pay', '', '1', 1)", "effect_pkey"),
        (INSERT + "('pay', '', '3', -1)", "effect_amount_not_negative"),
        ("update pgonce.event set status = 'running' where event_id = '3'", "event_status_known"),
        ("update pgonce.event set payload = null where event_id = '3'", "event_payload_kept"),
        ("update pgonce.event set status = 'pruned', payload = null where event_id = '1'", "event_fingerprint_kept"),
        ("update pgonce.event set adopted = true where event_id = '3'", "event_adopted_completed"),
    ],
)  # fmt: skip
def test_constraints_hold_the_states_and_the_reference(three: Desk, statement: str, constraint: str) -> None:
    """E2, E3: an effect needs its event, is unique and not negative; states are in the known set."""
    with pytest.raises(psycopg.IntegrityError) as caught:
        three.sql(statement)
    assert caught.value.diag.constraint_name == constraint


def test_what_an_operator_may_do_is_not_refused(three: Desk) -> None:
    """I7, I8: a failed event may be reopened and amended, a completed one pruned."""
    three.sql("update pgonce.event set status = 'pending', amount_cents = 7, payload = '[\"w\"]' where event_id = '3'")
    three.sql("update pgonce.event set status = 'pruned', payload = null, fingerprint = '\\x02' where event_id = '1'")
    assert three.statuses() == {"1": "pruned", "2": "pruned", "3": "pending"}


def test_a_session_whose_guards_are_off_by_setting_is_refused_before_anything_is_written(desk: Desk) -> None:
    """E3: under session_replication_role = replica foreign keys would not hold; pgonce does not work there."""
    name = desk.one("select current_database()")
    desk.sql(f"alter database {name} set session_replication_role = replica")
    desk.clerk.session.close()
    with pytest.raises(ConfigurationError, match="session_replication_role is replica"):
        desk.run(desk.csv([(1, 1, "")]))
    with psycopg.connect(desk.dsn) as connection:
        assert connection.execute("select count(*) from pgonce.job").fetchone() == (0,)


def test_an_effect_that_is_there_without_its_event_stops_the_run(desk: Desk) -> None:
    """P1, HOUSE: a promise found broken is said as such; no row is marked failed for it."""
    desk.run(desk.csv([(1, 1, "x")]))
    desk.sql("drop trigger effect_reference on pgonce.effect")
    desk.sql("insert into pgonce.effect (job, source, event_id, amount_cents) values ('pay', '', '2', 5)")
    with pytest.raises(InvariantBroken, match="without its completed event"):
        desk.run(desk.csv([(2, 5, "y")]))
    assert desk.statuses() == {"1": "completed"}
