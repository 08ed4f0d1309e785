"""From the bytes of a file to the last finding: rows that cannot be used, formats, stopping, and adopted history."""

from __future__ import annotations

import pytest

from database.jobs import Desk
from pgonce.errors import ContentTaken, StopRequested

BAD_CSV = b"""\xef\xbb\xbfid,amount,note\r
1,10,plain\r
2,20\r
3,30,a,b\r
\r
4,x,not a number\r
,50,no id\r
6,60,\xff\xfe\r
7,70,"two
lines"\r
8,80,"a ""quoted"" comma, here"\r
9,90,nul \x00 here\r
10,,no amount\r
 11,110,blank\r
12,120,last"""

BAD_LINES = [
    (3, "column"),
    (4, "column"),
    (6, "amount"),
    (7, "id"),
    (8, "decoded"),
    (12, "NUL"),
    (13, "amount"),
    (14, "blank"),
]


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 1000])
def test_every_kind_of_bad_csv_row_is_found_by_its_line(desk: Desk, chunk_rows: int) -> None:
    """F3: encoding, column count, number, missing id, NUL: rejected with a plain reason; the others are applied."""
    report = desk.run(desk.text(BAD_CSV, name="bad.csv"), chunk_rows=chunk_rows)
    found = desk.findings()
    assert [(line, kind) for line, kind, _ in found] == [(line, "rejected") for line, _ in BAD_LINES]
    for (_, _, reason), (_, word) in zip(found, BAD_LINES, strict=True):
        assert word in reason
    assert desk.effects() == {"1": 10, "7": 70, "8": 80, "12": 120}
    payloads = dict(desk.sql("select event_id, payload from pgonce.event"))
    assert payloads["7"] == '["two\\nlines"]'
    assert payloads["8"] == '["a \\"quoted\\" comma, here"]'
    assert (report.run.read.rows, report.run.applied.rows, report.run.rejected.rows) == (12, 4, 8)
    assert report.run.balanced
    assert report.exit_code == 1


def test_a_rejected_row_is_kept_as_it_came(desk: Desk) -> None:
    """F3, Q45: so that it can be corrected and handed in again."""
    desk.run(desk.text(BAD_CSV, name="bad.csv"))
    raws = dict(desk.sql("select line, raw from pgonce.finding"))
    assert raws[3] == b"2,20\r\n"
    assert raws[8] == b"6,60,\xff\xfe\r\n"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{", "JSON"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ('{"id":1,"id":2,"amount":1}', "twice"),
        ('{"id":1,"amount":1,"a":NaN}', "NaN"),
        ('{"id":1,"amount":1,"a":' + "[" * 70 + "]" * 70 + "}", "deep"),
        ('{"id":1,"amount":1,"a":"\\ud800"}', "surrogate"),
        ('{"id":1,"amount":1,"a":"\\u0000"}', "NUL"),
        ('{"id":1,"amount":' + "9" * 700 + "}", "digits"),
        ('{"id":1,"amount":9223372036854775808}', "64 bits"),
        ('{"id":1,"amount":"12.5"}', "cents"),
        ('{"id":1,"amount":true}', "amount"),
        ('{"id":1}', "amount"),
        ('{"amount":1}', "id"),
        ('{"id":null,"amount":1}', "id"),
        ('{"id":1.5,"amount":1}', "id"),
        ('{"id":{"a":1},"amount":1}', "id"),
        ('{"id":true,"amount":1}', "id"),
        ('{"id":1,"amount":1,"a":"' + "x" * 300_000 + '"}', "256 KiB"),
    ],
)
def test_every_kind_of_bad_json_line_is_found_by_its_line(desk: Desk, line: str, word: str) -> None:
    """F3, I5: what two readers could take in two ways, and what cannot be stored, is refused."""
    report = desk.run(desk.ndjson(['{"id":"good","amount":1}', "", line, '{"id":"too","amount":2}']))
    [(number, kind, reason)] = desk.findings()
    assert (number, kind) == (3, "rejected")
    assert word in reason
    assert desk.effects() == {"good": 1, "too": 2}
    assert report.run.balanced


def test_an_integer_amount_is_the_same_in_csv_json_and_with_a_scale(desk: Desk) -> None:
    """I6: exact decimal text with a declared scale; never a float."""
    report = desk.run(
        desk.csv([(1, "12.50"), (2, "12.5"), (3, "12"), (4, "0.015"), (5, "1e2"), (6, "-0.01")], header="id,amount"),
        amount_scale=2,
    )
    assert desk.effects() == {"1": 1250, "2": 1250, "3": 1200}
    assert [line for line, _, _ in desk.findings()] == [5, 6]
    assert (report.run.failed.rows, report.run.failed.cents) == (1, -1)
    assert desk.run(desk.ndjson(['{"id":1,"amount":12.50}']), amount_scale=2).start.already.rows == 1


def test_a_job_without_an_amount_counts_events(desk: Desk) -> None:
    """E2: its effects are worth nothing, and there is one for each event."""
    report = desk.run(desk.csv([(1, "a"), (2, "b"), (1, "a")], header="id,note"), amount=None)
    assert desk.effects() == {"1": 0, "2": 0}
    assert (report.run.applied.rows, report.run.already.rows, report.run.read.cents) == (2, 1, 0)


@pytest.mark.parametrize("chunk_rows", [1, 2, 4, 1000])
@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (("x", "abc", ""), "'abc'"),
        (("", 1, ""), "id"),
        (("1", 99, "other"), "another payload"),
        (("n", -1, ""), "below zero"),
    ],
)
def test_stopping_at_the_first_bad_row_stops_exactly_before_it(
    desk: Desk, bad: tuple[object, ...], word: str, chunk_rows: int
) -> None:
    """Q45, F3: rows before are applied, the row is not recorded; a corrected file goes on and adds only the rest."""
    rows = [(number, number, "n") for number in range(1, 11)]
    path = desk.csv([*rows[:6], bad, *rows[6:]], name="daily.csv")
    for _ in range(2):
        with pytest.raises(StopRequested) as caught:
            desk.run(path, chunk_rows=chunk_rows, on_error="stop")
        assert "line 8" in str(caught.value)
        assert word in str(caught.value)
        assert list(desk.effects()) == ["1", "2", "3", "4", "5", "6"]
        assert desk.findings() == []
        assert desk.positions()[-1][2] == 7
    report = desk.run(desk.csv(rows, name="daily.csv"), chunk_rows=chunk_rows, on_error="stop")
    assert (report.start.applied.rows, report.start.already.rows, report.exit_code) == (4, 6, 0)
    assert "other content" in report.notes[0]
    assert sum(desk.effects().values()) == 55


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 1000])
@pytest.mark.parametrize("allowed", [0, 1, 2, 3, 4])
def test_a_limit_of_bad_rows_stops_exactly_before_the_one_too_many(desk: Desk, allowed: int, chunk_rows: int) -> None:
    """F3: --max-rejected N keeps N findings and stops before the next bad row, whatever the chunks and the starts."""
    rows: list[tuple[object, ...]] = [
        ("", 1, ""),
        (1, 1, "a"),
        (1, 2, "b"),
        (2, 2, "c"),
        (3, -1, "d"),
        (4, 4, "e"),
        ("", 1, ""),
        (5, 5, ""),
    ]
    bad_lines = [2, 4, 6, 8]
    path = desk.csv(rows)
    if allowed == 4:
        assert desk.run(path, chunk_rows=chunk_rows, max_rejected=4).exit_code == 1
        return
    for _ in range(2):
        with pytest.raises(StopRequested, match=f"line {bad_lines[allowed]}"):
            desk.run(path, chunk_rows=chunk_rows, max_rejected=allowed)
        assert desk.positions()[-1][2] == (bad_lines[allowed] - 1 if allowed else 0)
    failed = sum(status == "failed" for status in desk.statuses().values())
    assert len(desk.findings()) + failed == allowed
    assert desk.run(path, chunk_rows=chunk_rows).run.applied.rows == 4
    assert desk.effects() == {"1": 1, "2": 2, "4": 4, "5": 5}


@pytest.mark.parametrize("chunk_rows", [1, 3, 1000])
def test_stopping_at_a_row_that_the_effect_refuses(desk: Desk, chunk_rows: int) -> None:
    """E7, Q35: with --on-error stop no event is marked failed; after the repair the same command goes on."""
    desk.sql("create table log (cents bigint check (cents <> 3))")
    path, effect = (
        desk.csv([(number, number, "") for number in range(1, 6)]),
        "insert into log select amount_cents from chunk",
    )
    with pytest.raises(StopRequested, match=r"line 4, event '3'.*23514"):
        desk.run(path, chunk_rows=chunk_rows, on_error="stop", effect=effect)
    assert desk.statuses() == {"1": "completed", "2": "completed"}
    desk.sql("alter table log drop constraint log_cents_check")
    assert desk.run(path, chunk_rows=chunk_rows, on_error="stop", effect=effect).exit_code == 0
    assert desk.sql("select cents from log order by 1") == [(number,) for number in range(1, 6)]


def test_adopted_history_has_no_effect_and_is_never_applied(desk: Desk) -> None:
    """F5: rows an older program applied are completed without effect, negative ones too; later files replay them."""
    desk.sql("create table log (event_id text)")
    effect = "insert into log select event_id from chunk"
    history = desk.csv([(1, 10, "a"), (2, -20, "b"), (1, 10, "a"), (1, 99, "a"), ("", 1, "")])
    report = desk.run(history, kind="adopt", effect=effect)
    assert (report.run.adopted.rows, report.run.adopted.cents, report.run.already.rows) == (2, -10, 1)
    assert (report.run.conflict.rows, report.run.rejected.rows, report.run.applied.rows) == (1, 1, 0)
    assert report.run.balanced
    assert (desk.effects(), desk.sql("select * from log")) == ({}, [])
    later = desk.run(desk.csv([(2, -20, "b"), (3, 30, "c"), (1, 98, "a")]), effect=effect)
    assert (later.run.already.rows, later.run.applied.rows, later.run.conflict.rows) == (1, 1, 1)
    assert desk.effects() == {"3": 30}
    assert desk.sql("select * from log") == [("3",)]
    assert desk.run(history, kind="adopt", effect=effect).shortcut
    desk.sound()


def test_history_that_was_adopted_is_all_replays_when_it_is_run(desk: Desk) -> None:
    """F5, I9: the same content to be applied names the same events: nothing is refused, and nothing applied."""
    history = desk.csv([(1, 10, "a"), (2, 20, "b")])
    desk.run(history, kind="adopt")
    assert desk.run(history).start.already.rows == 2
    assert desk.effects() == {}
    with pytest.raises(ContentTaken, match="job 'pay', now 'other'"):
        desk.run(history, job="other")


def test_what_was_applied_is_not_adopted(desk: Desk) -> None:
    """F5: an event that has its effect stays as it is."""
    desk.run(desk.csv([(1, 10, "a")]))
    report = desk.run(desk.csv([(1, 10, "a"), (2, 20, "b")]), kind="adopt")
    assert (report.start.already.rows, report.start.adopted.rows) == (1, 1)
    assert desk.effects() == {"1": 10}
    desk.sound()


def test_the_order_of_rows_and_the_format_do_not_change_the_end(desk: Desk) -> None:
    """I4, F1: CSV, NDJSON and TSV of the same events end in the same ledger."""
    desk.run(desk.csv([(1, 10, "a"), (2, 20, "b")]), payload=("note",))
    report = desk.run(
        desk.ndjson([{"note": "b", "id": 2, "amount": 20}, {"amount": 10, "note": "a", "id": "1", "extra": 1}]),
        payload=("note",),
    )
    assert report.start.already.rows == 2
    tabs = desk.text("note\tid\tamount\na\t1\t10\nc\t3\t30\n", name="x.tsv")
    assert desk.run(tabs, payload=("note",)).start.applied.rows == 1
    assert desk.effects() == {"1": 10, "2": 20, "3": 30}
