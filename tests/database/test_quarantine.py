"""What needs a person: one view over rejected rows, conflicts and failed events, and the file that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from database.jobs import Desk, make_order
from pgonce.api import quarantine as api
from pgonce.engine.amend import Amendment, amend
from pgonce.engine.quarantine import Quarantined, count_quarantine, list_quarantine, show_line
from pgonce.errors import ConfigurationError
from pgonce.model.row import KEPT_RAW_BYTES_MAX
from pgonce.sources import ReadingOptions

BAD = 'id,amount,note,seen\na,-5,x,s1\n,3,no id,s2\nb,7,y,s3\na,9,other,s4\nc,1.5,"two\nlines",s5\nd,8\n'
"""Lines 2 failed, 3 rejected, 4 good, 5 conflict, 6 rejected over two lines, 8 rejected for its columns."""


def bad_input(desk: Desk, **options: Any) -> Path:
    """Run an input with every kind of bad row."""
    path = desk.text(BAD, name="bad.csv")
    desk.run(path, ignore=("seen",), **options)
    return path


def listed(desk: Desk, **asked: Any) -> list[Quarantined]:
    """List what is quarantined."""
    return desk.clerk.do(lambda tx: list_quarantine(tx, "pay", **asked), commit=False)


def test_the_view_is_in_the_order_of_the_input(desk: Desk) -> None:
    """Run, line, kind, identity, amount and reason of all that needs a person; what is good is not in it."""
    bad_input(desk)
    rows = listed(desk)
    assert [(row.run_id, row.line, row.kind, row.event_id, row.amount_cents) for row in rows] == [
        (1, 2, "failed", "a", -5), (1, 3, "rejected", None, None), (1, 5, "conflict", "a", 9),
        (1, 6, "rejected", None, None), (1, 8, "rejected", None, None),
    ]  # fmt: skip
    assert "below zero" in rows[0].reason
    assert "empty" in rows[1].reason
    counts = desk.clerk.do(lambda tx: count_quarantine(tx, "pay"), commit=False)
    assert counts == {"rejected": 3, "conflict": 1, "failed": 1}


def test_the_view_is_narrowed_by_run_kind_and_number(desk: Desk) -> None:
    """--run, --kind and --limit; what is asked wrongly is refused."""
    bad_input(desk)
    desk.run(desk.csv([("e", -1, "x", "")], header="id,amount,note,seen"), ignore=("seen",))
    assert [row.event_id for row in listed(desk, kinds=("failed",))] == ["a", "e"]
    assert [row.line for row in listed(desk, run_id=1, kinds=("rejected", "conflict"), limit=2)] == [3, 5]
    for wrong in ({"kinds": ("bad",)}, {"limit": 0}):
        with pytest.raises(ConfigurationError):
            listed(desk, **wrong)
    with pytest.raises(ConfigurationError, match="no job"):
        desk.clerk.do(lambda tx: list_quarantine(tx, "other"), commit=False)


def test_an_amended_event_leaves_the_view_until_it_fails_again(desk: Desk) -> None:
    """The view is over what is, not over what was."""
    bad_input(desk)
    amend(desk.clerk, "pay", "a", Amendment(amount="5"), why="sign")
    assert [row.kind for row in listed(desk)] == ["rejected", "conflict", "rejected", "rejected"]


def test_a_line_is_shown_with_the_row_as_it_came(desk: Desk) -> None:
    """show: the bytes of a finding, the payload of a failed event, nothing for a good line."""
    bad_input(desk)

    def shown(line: int, **asked: Any) -> list[Quarantined]:
        return desk.clerk.do(lambda tx: show_line(tx, "pay", line, **asked), commit=False)

    [row] = shown(6)
    assert (row.raw, row.raw_text) == (b'c,1.5,"two\nlines",s5\n', 'c,1.5,"two\nlines",s5')
    [failed] = shown(2)
    assert (failed.raw, failed.payload) == (None, {"note": "x"})
    assert shown(4) == []
    assert shown(2, run_id=9) == []


def test_bytes_that_are_no_text_are_shown_as_escapes(desk: Desk) -> None:
    """F3: a row in the wrong encoding is kept byte for byte."""
    desk.run(desk.text(b"id,amount,note\na,1,\xff\n", name="a.csv"))
    [row] = listed(desk)
    assert (row.raw, row.raw_text) == (b"a,1,\xff\n", "a,1,\\xff")


def export(desk: Desk, name: str = "out", **asked: Any) -> tuple[bytes, api.Exported]:
    """Export what is quarantined and return the file's bytes."""
    output = desk.folder / name
    done = api.export(output, job="pay", dsn=desk.dsn, **asked)
    assert sorted(path.name for path in desk.folder.glob(".*")) == [], "a temporary file stayed"
    return output.read_bytes(), done


def test_the_report_says_what_is_wrong_and_holds_every_byte(desk: Desk) -> None:
    """NDJSON: a line a row, with the reason, the row as text and as bytes, and an event's fields."""
    bad_input(desk)
    text, done = export(desk)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["line"] for line in lines] == [2, 3, 5, 6, 8]
    assert (lines[0]["payload"], lines[0]["raw"]) == ({"note": "x"}, None)
    assert lines[1]["raw"] == ",3,no id,s2"
    assert dict(done.rows) == {"rejected": 3, "conflict": 1, "failed": 1}


def test_exported_rows_can_be_corrected_and_handed_in(desk: Desk) -> None:
    """Rows as the input has them, under its header: corrected, they are applied; the others stay as they are."""
    path = bad_input(desk)
    text, done = export(desk, form="rows", like=path, kinds=("rejected",))
    assert text == b'id,amount,note,seen\n,3,no id,s2\nc,1.5,"two\nlines",s5\nd,8\n'
    assert (done.rows["rejected"], done.cut_off) == (3, 0)
    corrected = text.replace(b"\n,3", b"\ne,3").replace(b"1.5", b"150").replace(b"d,8", b"d,8,z,s6")
    report = desk.run(desk.text(corrected, name="corrected.csv"), ignore=("seen",))
    assert (report.exit_code, report.start.applied.rows) == (0, 3)
    assert desk.effects() == {"b": 7, "c": 150, "d": 8, "e": 3}


def test_a_failed_event_is_put_together_from_what_is_stored(desk: Desk) -> None:
    """Key, source, amount in the job's scale and payload return to their columns; ignored columns are empty."""
    path = desk.text('when,shop,no,cents,"a ""b""",n\ns1,north,7,-1.50,"x, y",008\n', name="a.csv")
    desk.run(path, order=make_order(
        key=("no", "shop"), amount="cents", amount_scale=2, source_column="shop", ignore=("when",), types={"n": "int"},
    ))  # fmt: skip
    text, _ = export(desk, form="rows", like=path)
    assert text == b'when,shop,no,cents,"a ""b""",n\n,north,7,-1.50,"x, y",8\n'


def test_rows_of_json_are_exported_as_json(desk: Desk) -> None:
    """NDJSON has no header: raw lines as they came, failed events as objects."""
    path = desk.ndjson([{"id": "a", "amount": -1, "n": 0}, '{"id":"b",', {"amount": 5}])
    desk.run(path)
    text, _ = export(desk, form="rows")
    assert text == b'{"amount":-1,"id":"a","n":0}\n{"id":"b",\n{"amount": 5}\n'


def test_an_input_without_a_header_gets_none(desk: Desk) -> None:
    """--no-header: the columns are those that were named; a delimiter of its own is kept."""
    reading = ReadingOptions(header=False, columns=("id", "amount", "note"), delimiter=";")
    desk.run(desk.text("a;-1;x\n;2;y", name="a.csv"), reading=reading)
    text, _ = export(desk, form="rows")
    assert text == b"a;-1;x\n;2;y\n"


def test_rows_with_a_header_need_a_file_to_take_it_from(desk: Desk) -> None:
    """The header is not kept; the message says what to do, and no file is made."""
    bad_input(desk)
    with pytest.raises(ConfigurationError, match="--like FILE"):
        export(desk, form="rows")
    assert not (desk.folder / "out").exists()


def test_rows_that_were_read_in_different_ways_do_not_go_into_one_file(desk: Desk) -> None:
    """Commas and semicolons cannot stand under one header: one run is asked for."""
    first = desk.text("id,amount,note\n,1,x\n", name="a.csv")
    desk.run(first)
    desk.run(desk.text("id;amount;note\n,x;1;y\n;2;z\n", name="b.csv"), reading=ReadingOptions(delimiter=";"))
    with pytest.raises(ConfigurationError, match="--run N"):
        export(desk, form="rows", like=first)
    text, _ = export(desk, form="rows", like=first, run_id=1)
    assert text == b"id,amount,note\n,1,x\n"


def test_rows_that_were_cut_off_are_left_out_and_counted(desk: Desk) -> None:
    """A row too long to be kept whole is not passed off as the row."""
    path = desk.csv([("", 1, "x" * KEPT_RAW_BYTES_MAX), ("", 2, "y")])
    desk.run(path)
    text, done = export(desk, form="rows", like=path)
    assert (text, done.cut_off) == (b"id,amount,note\n,2,y\n", 1)
    report, _ = export(desk)
    assert [json.loads(line)["cut_off"] for line in report.splitlines()] == [True, False]


def test_nothing_quarantined_gives_an_empty_file(desk: Desk) -> None:
    """An export of nothing is a file of nothing, in both forms."""
    desk.run(desk.csv([("a", 1, "x")]))
    assert export(desk)[0] == export(desk, form="rows")[0] == b""


def test_a_file_appears_whole_or_not_at_all(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that fails half-way leaves the old file as it was and nothing beside it."""
    bad_input(desk)
    (desk.folder / "out").write_bytes(b"old")
    real, count = api.report_line, iter(range(9))

    def failing(row: Quarantined) -> bytes:
        if next(count) == 2:
            raise OSError(28, "No space left on device")
        return real(row)

    monkeypatch.setattr(api, "report_line", failing)
    with pytest.raises(ConfigurationError, match="No space left"):
        export(desk)
    assert (desk.folder / "out").read_bytes() == b"old"
    assert list(desk.folder.glob(".*")) == []
