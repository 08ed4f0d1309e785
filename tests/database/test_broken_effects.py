"""An effect that is at odds with pgonce ends the run with a reason; it never ends in rows marked as failed, or not at
all."""

from __future__ import annotations

from pathlib import Path

import pytest

from database.jobs import Desk
from pgonce.errors import ConfigurationError, EffectFailed

ROWS = [(1, 10, "x"), (2, 20, "y"), (3, 30, "x")]


@pytest.mark.parametrize(
    "value", ["'infinity'::timestamptz", "'-infinity'::date", "date '0044-03-15 BC'", "'24:00'::time"]
)
def test_an_effect_may_return_a_value_that_python_has_no_form_for(desk: Desk, value: str) -> None:
    """E1: what a statement returns is nobody's input; no row is refused for it."""
    report = desk.run(desk.csv(ROWS), effect=f"select {value} from chunk", chunk_rows=2)
    assert (report.exit_code, report.run.applied.rows) == (0, 3)


def test_a_check_that_returns_such_a_value_still_refuses_the_rows(desk: Desk) -> None:
    """E7: a row is a row, whether it can be shown or not."""
    verify = "select timestamptz 'infinity' from chunk where event_id = '2'"
    report = desk.run(desk.csv(ROWS), effect="select 1", verify=verify)
    assert desk.statuses() == {"1": "completed", "2": "failed", "3": "completed"}
    assert report.run.failed.rows == 1


@pytest.mark.parametrize(
    "statement",
    [
        "delete from pgonce.start",
        "update pgonce.start set chunks = chunks + 1",
        "update pgonce.start set ended_at = now()",
        "update pgonce.start set position = position + 1",
    ],
)
def test_an_effect_that_moves_the_position_ends_the_run(desk: Desk, statement: str) -> None:
    """E8, R1: a position that only the chunk itself takes away is no reason to read the input again without end."""
    with pytest.raises(EffectFailed, match=r"the row of this start in pgonce\.start was changed"):
        desk.run(desk.csv(ROWS), effect=f"{statement}; select 1 from chunk", chunk_rows=2)
    assert desk.statuses() == {}
    assert desk.effects() == {}


def test_a_chunk_is_committed_durably_whatever_a_function_of_the_effect_sets(desk: Desk) -> None:
    """E4: synchronous_commit is on at COMMIT, where a deferred trigger can see it."""
    desk.sql("""
        create table seen (value text);
        create table touched (id text);
        create function note() returns trigger language plpgsql as
            $$ begin insert into public.seen values (current_setting('synchronous_commit')); return null; end $$;
        create constraint trigger note after insert on touched deferrable initially deferred
            for each row execute function note();
    """)
    effect = (
        "insert into touched select min(event_id) from chunk; select set_config('synchronous_commit', 'off', false)"
    )
    desk.run(desk.csv(ROWS), effect=effect)
    assert desk.sql("select value from seen") == [("on",)]


@pytest.mark.parametrize("header", ["id,amount,ctid", "id,amount,line,file_line", f"id,amount,{'k' * 64},{'k' * 65}"])
def test_columns_that_the_relation_cannot_have_are_named_before_anything_is_stored(desk: Desk, header: str) -> None:
    """F3: no job is stored by it, so that the corrected file is its first run."""
    path = desk.csv([(1, 10, *"x" * (header.count(",") - 1))], header=header)
    with pytest.raises(ConfigurationError, match="the relation chunk cannot have these columns"):
        desk.run(path, effect="select 1 from chunk")
    assert desk.sql("select job from pgonce.job") == []
    assert desk.run(path).exit_code == 0


def test_more_columns_than_a_table_holds_are_refused_before_anything_is_stored(desk: Desk) -> None:
    """F3: a limit of the server is no fault of a row."""
    extra = [f"c{number}" for number in range(1600)]
    path = desk.csv([(1, 10, *extra)], header=",".join(["id", "amount", *extra]))
    with pytest.raises(ConfigurationError, match="has 1602 columns; the relation chunk holds 1596"):
        desk.run(path, effect="select 1 from chunk")
    assert desk.sql("select job from pgonce.job") == []


def test_a_scale_that_no_amount_can_have_is_not_stored(desk: Desk) -> None:
    """I9: the definition of a job is one that can be run."""
    with pytest.raises(ConfigurationError, match="from 0 to 18"):
        desk.run(desk.csv(ROWS), amount_scale=19)
    assert desk.run(desk.csv(ROWS), amount_scale=2).exit_code == 0


def test_a_file_whose_name_is_not_utf8_is_read(desk: Desk, tmp_path: Path) -> None:
    """F2: a name is for messages only."""
    path = tmp_path / "n\udcff.csv"
    path.write_text("id,amount,note\n1,10,x\n")
    report = desk.run(path)
    assert (report.exit_code, report.input_name) == (0, str(tmp_path / "n\\xff.csv"))
