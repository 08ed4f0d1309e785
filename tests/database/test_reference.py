"""The reference from an effect to its event, as a check of sets and as a foreign key: nobody gets past either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors

from conftest import make_clerk
from database.jobs import Desk, in_thread, refer, until_blocked
from pgonce.api import admin
from pgonce.db import drift
from pgonce.db.reference import in_force, switch
from pgonce.errors import ConfigurationError

EFFECT = "insert into pgonce.effect (job, source, event_id, amount_cents) values "
EVENT = "insert into pgonce.event (amount_cents, run_id, line, epoch, job, source, event_id, status, payload) values "

REWRITES = {
    "deleted": "delete from pgonce.event where event_id = 'a'",
    "renamed": "update pgonce.event set event_id = 'b' where event_id = 'a'",
    "moved to another job": "update pgonce.event set job = 'other' where event_id = 'a'",
    "amount changed": "update pgonce.event set amount_cents = 8 where event_id = 'a'",
    "reopened": "update pgonce.event set status = 'pending' where event_id = 'a'",
    "truncated": "truncate pgonce.event cascade",
}


@pytest.fixture(params=["set", "row"])
def desk_with(desk: Desk, request: pytest.FixtureRequest) -> Desk:
    """Give a desk with each kind of reference."""
    refer(desk, request.param)
    return desk


def stored(desk: Desk, status: str = "completed", *, event_id: str = "a", adopted: bool = False) -> None:
    """Store an event of 7 cents without an effect."""
    desk.sql(EVENT + f"(7, 1, 1, 1, 'pay', '', '{event_id}', '{status}', '[]')")
    if adopted:
        desk.sql("alter table pgonce.event disable trigger user; update pgonce.event set adopted = true")


@contextmanager
def session(desk: Desk) -> Iterator[psycopg.Connection]:
    """Open another session, whose transaction is rolled back at the end."""
    with psycopg.connect(desk.dsn) as connection:
        yield connection
        connection.rollback()


def test_an_effect_without_an_event_is_refused(desk_with: Desk) -> None:
    """E2, E3: by name of the reference, so that one sees what was violated."""
    stored(desk_with)
    with pytest.raises(errors.ForeignKeyViolation) as caught:
        desk_with.sql(EFFECT + "('pay', '', 'a', 7), ('pay', '', 'ghost', 7)")
    assert caught.value.diag.constraint_name in ("effect_reference", "effect_event_fkey")
    assert (caught.value.diag.schema_name, caught.value.diag.table_name) == ("pgonce", "effect")
    assert desk_with.effects() == {}


@pytest.mark.parametrize("key", ["('other', '', 'a', 7)", "('pay', 'x', 'a', 7)", "('pay', '', 'A', 7)"])
def test_each_part_of_the_key_counts(desk_with: Desk, key: str) -> None:
    """I1: job, source and id together are the identity, compared bytewise."""
    stored(desk_with)
    with pytest.raises(errors.ForeignKeyViolation):
        desk_with.sql(EFFECT + key)


STATEMENTS = {
    "merge": """merge into pgonce.effect as f
        using (select 'pay' as job, '' as source, 'ghost' as event_id, 7 as amount_cents) as s on false
        when not matched then insert (job, source, event_id, amount_cents)
        values (s.job, s.source, s.event_id, s.amount_cents)""",
    "two in one": f"""with one as ({EFFECT}('pay', '', 'a', 7) returning 1),
        two as ({EFFECT}('pay', '', 'ghost', 7) returning 1) select 1""",
    "on conflict": EFFECT + "('pay', '', 'ghost', 7) on conflict do nothing",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_no_kind_of_statement_gets_past_it(desk_with: Desk, statement: str) -> None:
    """E3: whatever inserts is looked at."""
    stored(desk_with)
    with pytest.raises(errors.ForeignKeyViolation):
        desk_with.sql(statement)
    assert desk_with.effects() == {}


def test_copy_does_not_get_past_it(desk_with: Desk) -> None:
    """E3: COPY, by which the engine writes, is looked at as well."""
    stored(desk_with)
    with session(desk_with) as connection, connection.cursor() as cursor:

        def copy() -> None:
            with cursor.copy("copy pgonce.effect (job, source, event_id, amount_cents) from stdin") as out:
                out.write_row(("pay", "", "ghost", 7))

        with pytest.raises(errors.ForeignKeyViolation):
            copy()


@pytest.mark.parametrize("missing", [0, 1, 63, 64, 100, 198, 199])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_one_missing_among_many_is_found(desk_with: Desk, missing: int, sparse: bool) -> None:
    """E3: wherever it stands, and whether the ids around it belong to the same chunk or to others."""
    everyone = range(0, 4000, 20 if sparse else 1)
    desk_with.sql(
        EVENT.replace("values", "select 7, 1, 1, 1, 'pay', '', lpad(n::text, 6, '0'), 'completed', '[]'")
        + f" from generate_series(0, 3999) as n where n <> {everyone[missing]}"
    )
    chosen = ", ".join(f"('pay', '', '{number:06}', 7)" for number in everyone[:200])
    with pytest.raises(errors.ForeignKeyViolation, match=f"{everyone[missing]:06}"):
        desk_with.sql(EFFECT + chosen)
    stored(desk_with, event_id=f"{everyone[missing]:06}")
    desk_with.sql(EFFECT + chosen)
    assert len(desk_with.effects()) == 200


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
@pytest.mark.parametrize("effect_first", [True, False])
def test_an_effect_in_one_open_transaction_and_a_rewrite_of_its_event_in_another(
    desk_with: Desk, rewrite: str, effect_first: bool
) -> None:
    """E3: neither sees the other, and whoever comes first, no effect is left without its event."""
    stored(desk_with)
    with session(desk_with) as applying, session(desk_with) as rewriting:
        if effect_first:
            applying.execute(EFFECT + "('pay', '', 'a', 7)")
        # A truncate, and with the foreign key a new key, would first wait for the effect's transaction.
        rewriting.execute("set lock_timeout = '200ms'")
        with pytest.raises((errors.FeatureNotSupported, errors.LockNotAvailable)):
            rewriting.execute(rewrite)
        if not effect_first:
            rewriting.rollback()
            applying.execute(EFFECT + "('pay', '', 'a', 7)")
        applying.commit()
    desk_with.sound()
    assert desk_with.effects() == {"a": 7}
    with pytest.raises(errors.FeatureNotSupported):
        desk_with.sql(rewrite)


def test_an_event_in_another_open_transaction_does_not_count(desk_with: Desk) -> None:
    """E3: it may still be rolled back."""
    with session(desk_with) as other:
        other.execute(EVENT + "(7, 1, 1, 1, 'pay', '', 'a', 'completed', '[]')")
        with pytest.raises(errors.ForeignKeyViolation):
            desk_with.sql(EFFECT + "('pay', '', 'a', 7)")
        other.rollback()
    assert desk_with.effects() == {}


def test_an_event_that_is_rolled_back_takes_its_effect_with_it(desk_with: Desk) -> None:
    """E1: savepoints included."""
    with session(desk_with) as connection:
        connection.execute("savepoint one")
        connection.execute(EVENT + "(7, 1, 1, 1, 'pay', '', 'a', 'completed', '[]')")
        connection.execute(EFFECT + "('pay', '', 'a', 7)")
        connection.execute("rollback to savepoint one")
        with pytest.raises(errors.ForeignKeyViolation):
            connection.execute(EFFECT + "('pay', '', 'a', 7)")
    assert (desk_with.statuses(), desk_with.effects()) == ({}, {})


def test_an_amendment_that_waits_for_the_effect_s_transaction_is_refused_after_it(desk_with: Desk) -> None:
    """E3, I7: an event that is completed, with its effect, in one transaction cannot be amended by one that waited."""
    stored(desk_with, "pending")
    with session(desk_with) as applying:
        applying.execute("update pgonce.event set status = 'completed'")
        applying.execute(EFFECT + "('pay', '', 'a', 7)")
        with in_thread(desk_with.sql, "update pgonce.event set amount_cents = 9") as amending:
            until_blocked_elsewhere(desk_with, applying)
            applying.commit()
        assert isinstance(amending.exception(), errors.FeatureNotSupported)
    desk_with.sound()


def test_a_key_that_is_being_inserted_elsewhere_is_waited_for(desk_with: Desk) -> None:
    """E4: two sessions insert the same event; the second waits and then fails on the key, effects included."""
    both = f"with e as ({EVENT}(7, 1, 1, 1, 'pay', '', 'a', 'completed', '[]')) {EFFECT}('pay', '', 'a', 7)"
    with session(desk_with) as first:
        first.execute(both)
        with in_thread(desk_with.sql, both) as second:
            until_blocked_elsewhere(desk_with, first)
            first.commit()
        assert isinstance(second.exception(), errors.UniqueViolation)
    assert desk_with.effects() == {"a": 7}


def until_blocked_elsewhere(desk: Desk, holder: psycopg.Connection) -> None:
    """Wait, on a connection of its own, until a session waits for this one."""
    looking = Desk(dsn=desk.dsn, clerk=desk.clerk, folder=desk.folder, make_clerk=desk.make_clerk)
    until_blocked(looking, holder.info.backend_pid)
    looking.close()


@pytest.fixture
def writer(desk: Desk) -> Iterator[str]:
    """Give the name of a role that owns nothing."""
    name = str(desk.one("select 'pgonce_writer_' || oid from pg_database where datname = current_database()"))
    desk.sql(f"create role {name}; grant usage on schema pgonce to {name}")
    yield name
    desk.sql(f"drop owned by {name} cascade; drop role {name}")


@pytest.mark.parametrize(
    "grant",
    [
        "grant all on all tables in schema pgonce to {role}",
        "grant insert on pgonce.effect to {role}",
        "grant insert on pgonce.effect to {role}; grant select on pgonce.event to {role}",
        "grant all on all tables in schema pgonce to {role}; alter table pgonce.event enable row level security",
        "grant all on all tables in schema pgonce to {role}; alter role {role} set row_security = off",
    ],
    ids=["everything", "only insert", "insert and look", "row security", "row security off"],
)
def test_no_role_gets_past_it(desk_with: Desk, writer: str, grant: str) -> None:
    """E3: a role with few rights is refused for them, and never let through."""
    stored(desk_with)
    desk_with.sql(grant.format(role=writer))
    with session(desk_with) as connection:
        connection.execute(f"set role {writer}")
        with pytest.raises((errors.ForeignKeyViolation, errors.InsufficientPrivilege)):
            connection.execute(EFFECT + "('pay', '', 'ghost', 7)")


def test_names_and_operators_of_the_role_s_own_mean_nothing_to_it(desk_with: Desk, writer: str) -> None:
    """E3: an operator that finds everything equal, a relation of the same name, settings that hide indexes."""
    stored(desk_with)
    desk_with.sql(
        f"""grant all on all tables in schema pgonce to {writer};
        create schema {writer} authorization {writer}; set local role {writer};
        create function {writer}.yes(text, text) returns boolean language sql as 'select true';
        create operator {writer}.= (leftarg = text, rightarg = text, function = {writer}.yes);
        create table {writer}.inserted as select 'pay' as job, '' as source, 'a' as event_id, 7 as amount_cents
        where false"""
    )
    with session(desk_with) as connection:
        connection.execute(f"set role {writer}")
        connection.execute(f"set search_path = {writer}, pg_catalog")
        connection.execute(
            "set enable_indexscan = off; set enable_hashjoin = off; set plan_cache_mode = force_generic_plan"
        )
        with pytest.raises(errors.ForeignKeyViolation):
            connection.execute(EFFECT + "('pay', '', 'ghost', 7)")


def test_a_trigger_of_somebody_else_that_renames_an_event_on_its_way_is_refused(desk_with: Desk) -> None:
    """E3: the guard looks at the row as it is stored, after every other trigger."""
    stored(desk_with)
    desk_with.sql(EFFECT + "('pay', '', 'a', 7)")
    desk_with.sql(
        """create function public.rename() returns trigger language plpgsql as
        $body$ begin new.event_id := 'b'; return new; end $body$;
        create trigger zz before update on pgonce.event for each row execute function public.rename()"""
    )
    with pytest.raises((errors.FeatureNotSupported, errors.ForeignKeyViolation)):
        desk_with.sql("update pgonce.event set attempts = attempts + 1")
    desk_with.sound()


@pytest.mark.parametrize("role", ["origin", "local", "replica"])
def test_the_check_of_sets_holds_under_every_replication_role(desk: Desk, role: str) -> None:
    """E3: a foreign key does not hold under `replica`, which is why pgonce refuses to work there; this one does."""
    stored(desk)
    with session(desk) as connection:
        connection.execute(f"set session_replication_role = {role}")
        with pytest.raises(errors.ForeignKeyViolation):
            connection.execute(EFFECT + "('pay', '', 'ghost', 7)")


@pytest.mark.parametrize(
    ("status", "amount", "adopted", "why"),
    [
        ("pending", 7, False, "is pending"),
        ("failed", 7, False, "is failed"),
        ("completed", 8, False, "has the amount 7, not 8"),
        ("completed", 7, True, "was adopted"),
    ],
)
def test_the_check_of_sets_wants_the_event_completed_with_the_same_amount(
    desk: Desk, status: str, amount: int, adopted: bool, why: str
) -> None:
    """P1: an effect exists if and only if the event is completed and not adopted; a foreign key cannot say that."""
    stored(desk, status, adopted=adopted)
    with pytest.raises(errors.ForeignKeyViolation, match=why):
        desk.sql(EFFECT + f"('pay', '', 'a', {amount})")


def test_the_check_of_sets_takes_effects_of_several_jobs_and_sources_at_once(desk: Desk) -> None:
    """E3: each row is looked at by its own key."""
    desk.sql(
        EVENT.replace("values", "select 7, 1, 1, 1, j, s, n::text, 'completed', '[]'")
        + " from unnest(array['x', 'y']) as j, unnest(array['', 's']) as s, generate_series(1, 50) as n"
    )
    every = "select job, source, event_id, amount_cents from pgonce.event"
    into = "insert into pgonce.effect (job, source, event_id, amount_cents) "
    with pytest.raises(errors.ForeignKeyViolation, match="ghost"):
        desk.sql(f"{into}{every} union all select 'y', 's', 'ghost', 7")
    desk.sql(into + every)
    assert desk.one("select count(*) from pgonce.effect") == 200


def test_a_schema_is_made_with_either_and_keeps_it(empty_database: str) -> None:
    """`db init --reference row`: nothing drifts, init alone changes nothing, the other one has to be asked for."""
    assert admin.init(empty_database, reference="row").reference == "row"
    assert admin.doctor(empty_database).clean
    assert admin.init(empty_database).reference == "row"
    assert admin.migrate(empty_database).reference == "row"
    with pytest.raises(ConfigurationError, match=r"there with --reference row.*pgonce db migrate --reference set"):
        admin.init(empty_database, reference="set")
    assert admin.migrate(empty_database, reference="set").reference == "set"
    assert admin.doctor(empty_database).clean
    assert described_of(empty_database) == drift.expected()
    with pytest.raises(ConfigurationError, match="--reference none: it is one of set, row"):
        admin.init(empty_database, reference="none")


def described_of(dsn: str) -> tuple[str, ...]:
    """Describe the schema as it stands."""
    clerk = make_clerk(dsn)
    try:
        return clerk.do(drift.describe, commit=False)
    finally:
        clerk.session.close()


def test_switching_twice_is_done_once_and_the_foreign_key_looks_at_what_is_there(desk: Desk) -> None:
    """A reference that is broken already cannot be made a foreign key, and stays as it was."""
    assert [desk.clerk.do(lambda transaction: switch(transaction, "row")) for _ in range(2)] == [True, False]
    assert [desk.clerk.do(lambda transaction: switch(transaction, "set")) for _ in range(2)] == [True, False]
    desk.sql("drop trigger effect_reference on pgonce.effect")
    assert desk.clerk.do(in_force, commit=False) is None
    desk.sql(EFFECT + "('pay', '', 'ghost', 7)")
    with pytest.raises(ConfigurationError, match="effect_event_fkey"):
        admin.migrate(desk.dsn, reference="row")
