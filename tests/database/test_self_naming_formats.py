"""Parquet and CloudEvents from the file to the ledger: identity, resuming, reports, plans, exports."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pgonce
from database.jobs import Desk, Watching
from pgonce.api.plan import plan
from pgonce.api.quarantine import export
from pgonce.api.run import order
from pgonce.errors import ConfigurationError
from pgonce.model.limits import Limits

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CE = {"key": ("ce_id",), "source_column": "ce_source"}


def parquet(desk: Desk, columns: dict[str, Any], *, name: str = "in.parquet", **options: object) -> Path:
    path = desk.folder / name
    pq.write_table(pa.table(columns), path, **options)
    return path


def events(desk: Desk, *given: tuple[str, str, int], form: str = "batch", name: str = "in.json", **more: Any) -> Path:
    whole = [
        {"specversion": "1.0", "id": id_, "source": source, "type": "paid", "data": {"amount": amount}} | more
        for source, id_, amount in given
    ]
    text = json.dumps(whole) if form == "batch" else "".join(json.dumps(one) + "\n" for one in whole)
    return desk.text(text, name=name)


def test_parquet_integers_are_ids_as_decimal_text_and_decimals_are_money(desk: Desk) -> None:
    """I1, I6: the rows of a CSV file and of a Parquet file with the same values are the same events."""
    amounts = pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(9, 2))
    path = parquet(desk, {"id": [1, 2], "amount": amounts, "note": ["a", "b"]})
    assert desk.run(path, amount_scale=2).start.applied.rows == 2
    assert desk.effects() == {"1": 150, "2": 200}
    again = desk.run(desk.csv([(1, "1.5", "a"), (2, "2", "b"), (3, "3", "c")]), amount_scale=2)
    assert (again.start.already.rows, again.start.applied.rows) == (2, 1)


def test_a_parquet_run_goes_on_where_it_stopped_whatever_the_row_groups(desk: Desk) -> None:
    """E8, F2: the position is in rows; the same rows in another file are the same run."""
    columns = {"id": list(range(1, 21)), "amount": list(range(1, 21)), "note": ["n"] * 20}

    def stop(chunk: int) -> None:
        if chunk == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        desk.run(parquet(desk, columns, row_group_size=6), chunk_rows=4, observer=Watching(stop))
    assert desk.positions()[-1][2] == 12
    report = desk.run(parquet(desk, columns, name="again.pq", compression="zstd"), chunk_rows=4)
    assert (report.start.read.rows, report.run.applied.rows) == (8, 20)
    assert desk.run(parquet(desk, columns, name="third.parquet")).shortcut
    assert dict(desk.sql("select event_id, line from pgonce.event")) == {str(number): number for number in range(1, 21)}


def test_a_changed_parquet_file_under_a_known_name_is_reported(desk: Desk) -> None:
    """F2: it is a run of its own, and what was applied is a replay."""
    desk.run(parquet(desk, {"id": [1, 2], "amount": [1, 2], "note": ["", ""]}))
    report = desk.run(parquet(desk, {"id": [1, 2, 3], "amount": [1, 2, 3], "note": ["", "", ""]}))
    assert (report.start.already.rows, report.start.applied.rows) == (2, 1)
    assert "other content" in report.notes[0]


def test_bad_parquet_rows_are_found_by_their_number_and_can_be_corrected(desk: Desk) -> None:
    """F3, I5: floats, missing ids and amounts that do not fit are refused; the export is NDJSON to be handed in."""
    path = parquet(desk, {"id": [1, None, 3, 4], "amount": [10, 20, None, 40], "rate": [None, 1.0, 2.0, float("nan")]})
    report = desk.run(path)
    assert desk.effects() == {"1": 10}
    found = desk.findings()
    assert [(line, kind) for line, kind, _ in found] == [(2, "rejected"), (3, "rejected"), (4, "rejected")]
    for (_, _, reason), word in zip(found, ("id: is missing", "amount", "binary float"), strict=True):
        assert word in reason
    assert report.exit_code == 1
    out = desk.folder / "out.ndjson"
    assert export(out, job="pay", form="rows", dsn=desk.dsn).rows["rejected"] == 3
    assert [json.loads(line.replace("NaN", "0"))["id"] for line in out.read_text().splitlines()] == [None, 3, 4]


def test_a_float_that_is_not_compared_is_seen_by_the_effect(desk: Desk) -> None:
    """I5: what is ignored need not be exact; it comes as the text that PostgreSQL reads."""
    desk.sql("create table log (id text, rate float8, body bytea)")
    path = parquet(desk, {"id": [1], "amount": [1], "rate": [0.1], "body": [b"\x00\xff"]})
    effect = "insert into log select event_id, rate::float8, body::bytea from chunk"
    assert desk.run(path, ignore=("rate", "body"), effect=effect).exit_code == 0
    assert desk.sql("select * from log") == [("1", 0.1, b"\x00\xff")]


@pytest.mark.parametrize("form", ["batch", "lines"])
def test_a_cloud_event_is_its_source_and_id(desk: Desk, form: str) -> None:
    """I1: the same id from two sources are two events; a conflict is found by the number in the batch."""
    path = events(desk, ("/a", "1", 10), ("/b", "1", 20), ("/a", "1", 11), ("/a", "1", 10), form=form)
    report = desk.run(path, **CE)
    assert (report.run.applied.rows, report.run.already.rows, report.run.conflict.rows) == (2, 1, 1)
    assert desk.sql("select source, event_id, amount_cents from pgonce.effect order by 1") == [
        ("/a", "1", 10),
        ("/b", "1", 20),
    ]
    assert [line for line, _, _ in desk.findings()] == [3]
    assert desk.run(events(desk, ("/b", "1", 20), form=form, name="two.json"), **CE).start.already.rows == 1


@pytest.mark.parametrize("form", ["batch", "lines"])
def test_a_run_over_cloud_events_goes_on_where_it_stopped(desk: Desk, form: str) -> None:
    """E8: a batch has no lines, and yet no event of it is taken twice or left out."""

    def stop(chunk: int) -> None:
        if chunk == 2:
            raise KeyboardInterrupt

    path = events(desk, *((f"/{number % 3}", str(number), number) for number in range(1, 12)), form=form)
    with pytest.raises(KeyboardInterrupt):
        desk.run(path, chunk_rows=3, observer=Watching(stop), **CE)
    report = desk.run(path, chunk_rows=3, **CE)
    assert (report.start.read.rows, report.run.applied.rows) == (5, 11)
    assert sum(cents for (cents,) in desk.sql("select amount_cents from pgonce.effect")) == 66
    assert sorted(desk.sql("select line from pgonce.event")) == [(number,) for number in range(1, 12)]


def test_another_identity_of_cloud_events_is_refused(desk: Desk) -> None:
    """I1, I9: nothing is left behind by the refusal."""
    path = events(desk, ("/a", "1", 10))
    for wrong in ({"key": ("ce_id",)}, {"key": ("amount",), "source_column": "ce_source"}):
        with pytest.raises(ConfigurationError, match="--key ce_id --source-column ce_source"):
            desk.run(path, **wrong)
    assert desk.sql("select * from pgonce.job") == []


def test_cloud_events_that_failed_are_exported_as_events_to_be_handed_in(desk: Desk) -> None:
    """E7: of a batch, an event a line; what is read again are the same events."""
    path = events(desk, ("/a", "1", -10), ("/a", "2", 5))
    desk.text(path.read_text()[:-1] + ',{"id":\n"torn"}]', name="in.json")
    assert desk.run(path, **CE).run.failed.rows == 1
    out = desk.folder / "out.json"
    assert export(out, job="pay", form="rows", dsn=desk.dsn).rows == {"rejected": 1, "conflict": 0, "failed": 1}
    failed, torn = [json.loads(line) for line in out.read_text().splitlines()]
    assert torn == {"id": "torn"}
    assert (failed["id"], failed["source"], failed["data"]) == ("1", "/a", {"amount": -10})
    assert desk.run(out, **CE).start.failed.rows == 1


@pytest.mark.parametrize("name", ["in.parquet", "in.json"])
def test_plan_dry_run_and_row_report_know_the_formats(desk: Desk, name: str) -> None:
    """F1: what holds for CSV holds for every format."""
    if name == "in.json":
        path, identity = events(desk, ("/a", "1", 10), ("/a", "2", 20)), {"key": "ce_id", "source_column": "ce_source"}
    else:
        path, identity = parquet(desk, {"id": [1, 2], "amount": [10, 20]}), {"key": "id"}
    options: dict[str, Any] = {"job": "pay", "amount": "amount", "dsn": desk.dsn, "limits": Limits(), **identity}
    what = order(job="pay", amount="amount", **identity)
    assert plan(path, what, dsn=desk.dsn).start.applied.rows == 2
    assert pgonce.run(path, dry_run=True, **options).run.applied.rows == 2
    assert desk.effects() == {}
    out = desk.folder / "rows.ndjson"
    pgonce.run(path, report=out, **options)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["line"], line["event_id"], line["result"]) for line in lines] == [
        (1, "1", "applied"),
        (2, "2", "applied"),
    ]
    assert plan(path, what, dsn=desk.dsn).how == "recognised"
