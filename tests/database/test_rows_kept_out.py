"""What the user put on pgonce's tables may keep rows out: then nothing is committed (I2, E1), by whatever path."""

from __future__ import annotations

import pytest

from database.jobs import Desk
from pgonce.errors import EffectFailed, InvariantBroken

NUMBERED = [(f"{number:04}", 1, "") for number in range(1200)]


def keep_out(desk: Desk, table: str) -> None:
    """Have a trigger drop every tenth row that is to be stored."""
    desk.sql(
        f"""create function drop_it() returns trigger language plpgsql as
        $$ begin if new.event_id like '%7' then return null; end if; return new; end $$;
        create trigger mine before insert on pgonce.{table} for each row execute function drop_it()"""
    )


@pytest.mark.parametrize("chunk_rows", [20, 600])
@pytest.mark.parametrize("table", ["event", "effect"])
def test_a_row_that_a_trigger_keeps_out_is_an_error(desk: Desk, table: str, chunk_rows: int) -> None:
    """E1: an event without its effect, exit 0, would be money lost; it is said, and taken away the run goes on."""
    path, clerk = desk.csv(NUMBERED), desk.make_clerk()
    keep_out(desk, table)
    with pytest.raises(InvariantBroken, match=rf"{chunk_rows // 10} rows were not stored in {table}.*db doctor"):
        desk.run(path, clerk=clerk, chunk_rows=chunk_rows)
    clerk.session.close()
    assert (desk.effects(), desk.statuses()) == ({}, {})
    desk.sql(f"drop trigger mine on pgonce.{table}")
    assert desk.run(path, chunk_rows=chunk_rows).run.applied.rows == len(NUMBERED)
    desk.sound()


@pytest.mark.parametrize("table", ["effect", "event_history"])
def test_an_effect_that_is_kept_out_leaves_its_event_pending(desk: Desk, table: str) -> None:
    """E1: so it is where an event that was put off is completed, which its history tells."""
    path = desk.csv([("a7", -5, "")])
    desk.run(path)
    desk.amend("a7", 5)
    keep_out(desk, table)
    with pytest.raises(InvariantBroken, match=f"1 rows were not stored in {table}"):
        desk.run(path, clerk=desk.make_clerk())
    assert desk.statuses() == {"a7": "pending"}
    desk.sound()
    desk.sql(f"drop trigger mine on pgonce.{table}")
    desk.run(path)
    assert desk.effects() == {"a7": 5}


@pytest.mark.parametrize("chunk_rows", [20, 600])
@pytest.mark.parametrize("table", ["event", "effect"])
def test_a_rule_is_never_passed_over(desk: Desk, table: str, chunk_rows: int) -> None:
    """COPY does not know rules: the insert does, and says what it thinks of this one."""
    desk.sql(
        f"""create table audit (id text);
        create rule mine as on insert to pgonce.{table} do also insert into public.audit values (new.event_id)"""
    )
    with pytest.raises(EffectFailed, match="rule"):
        desk.run(desk.csv(NUMBERED), clerk=desk.make_clerk(), chunk_rows=chunk_rows)
    assert (desk.effects(), desk.statuses()) == ({}, {})


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (
            "trigger event.mine",
            """create function pgonce.look() returns trigger language plpgsql as $$ begin return null; end $$;
            create trigger mine after insert on pgonce.event for each row execute function pgonce.look()""",
        ),
        (
            "constraint effect.mine",
            """create function look() returns bool language plpgsql as
            $$ begin return (select count(*) from public.seen) >= 0; end $$;
            alter table pgonce.effect add constraint mine check (public.look())""",
        ),
        (
            "column finding.mine",
            """create function look() returns bigint language plpgsql as
            $$ begin return (select count(*) from public.seen); end $$;
            alter table pgonce.finding add column mine bigint default public.look()""",
        ),
        (
            "table event",
            """alter table pgonce.event enable row level security;
            create policy mine on pgonce.event using (true) with check ((select count(*) from public.seen) >= 0)""",
        ),
        (
            "event trigger mine",
            """create function look() returns event_trigger language plpgsql as $$ begin return; end $$;
            create event trigger mine on ddl_command_end execute function look()""",
        ),
    ],
)
def test_code_of_the_user_that_would_run_ahead_has_one_worker_work(desk: Desk, what: str, code: str) -> None:
    """E8: whatever may look at other tables when a row is stored, or the relation is made; the result says so."""
    desk.sql("create table seen (note text)")
    desk.sql(code)
    effect = "insert into public.seen select event_id from chunk"
    report = desk.run(desk.csv(NUMBERED), effect=effect, chunk_rows=100, workers=2)
    assert any("one worker" in note and what in note for note in report.notes)
    assert report.run.applied.rows == len(NUMBERED)


def test_indexes_of_the_user_are_no_code(desk: Desk) -> None:
    """Several workers work beside them."""
    desk.sql("create index mine on pgonce.event (recorded_at)")
    assert desk.run(desk.csv(NUMBERED), chunk_rows=100, workers=2).notes == ()
