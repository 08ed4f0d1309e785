"""An input that was taken before: known by its content, and answered without reading only where that is certain."""

from __future__ import annotations

import gzip

import pytest

from database.jobs import Desk, make_order
from pgonce.engine.job import change
from pgonce.errors import ConfigurationError, ContentTaken, DefinitionChanged
from pgonce.sources import ReadingOptions

ROWS = [(1, 10, "a"), (2, -5, "b"), ("", 3, ""), (1, 11, "c"), (3, 30, "d"), (1, 10, "a")]


def starts(desk: Desk) -> int:
    """Count the starts of all runs."""
    return int(desk.one("select count(*) from pgonce.start"))


def test_a_finished_input_is_answered_as_it_was_first(desk: Desk) -> None:
    """F2: same counts, findings and exit code; no start, no row is written."""
    path = desk.csv(ROWS)
    first, before = desk.run(path), desk.everything()
    again = desk.run(path)
    assert (first.shortcut, again.shortcut) == (False, True)
    assert (again.run, again.exit_code) == (first.run, first.exit_code)
    assert (again.start.already.rows, again.start.failed.rows) == (3, 1)
    assert again.start.balanced
    assert (desk.everything(), starts(desk)) == (before, 1)


def test_a_renamed_or_packed_input_is_recognised(desk: Desk) -> None:
    """F2: a file is its decompressed bytes, whatever it is called."""
    path = desk.csv(ROWS)
    desk.run(path)
    renamed = path.rename(path.with_name("other name.csv"))
    packed = desk.text(gzip.compress(renamed.read_bytes()), name="packed.csv.gz")
    assert desk.run(renamed).shortcut
    assert desk.run(packed).shortcut
    assert desk.run(renamed).notes == ()


def test_other_content_under_a_known_name_is_a_run_of_its_own_and_is_said(desk: Desk) -> None:
    """F2, F4: what was applied before is a replay, what is new is applied, and a note tells of the change."""
    desk.run(desk.csv(ROWS, name="daily.csv"))
    report = desk.run(desk.csv([*ROWS, (9, 9, "new")], name="daily.csv"))
    assert (report.run_id, report.start.applied.rows, report.start.already.rows) == (2, 1, 3)
    [note] = report.notes
    assert "daily.csv has other content than when it was last read (run 1, finished)" in note
    assert desk.effects() == {"1": 10, "3": 30, "9": 9}


@pytest.mark.parametrize(
    "condition",
    [
        "update pgonce.run set touched = true",
        "update pgonce.run set finished_at = null, outcome = null",
        "update pgonce.run set outcome = jsonb_set(outcome, '{counts,applied,rows}', '3')",
        "update pgonce.run set outcome = jsonb_set(outcome, '{counts,read,cents}', '1')",
        "update pgonce.run set outcome = jsonb_set(outcome, '{replayed_open}', '1')",
        "update pgonce.run set outcome = jsonb_set(outcome, '{cluster}', '\"another/5/00000001\"')",
        "update pgonce.event set status = 'pending', attempts = 0, error = null where event_id = '2'",
    ],
)
def test_every_condition_of_the_shortcut_is_needed(desk: Desk, condition: str) -> None:
    """F2: touched, unfinished, other counts, open replays, another database, something pending: it is read again."""
    path = desk.csv(ROWS)
    desk.run(path)
    desk.sql(condition)
    report = desk.run(path)
    assert not report.shortcut
    assert starts(desk) == 2
    assert desk.effects() == {"1": 10, "3": 30}
    assert (report.run.read.rows, report.run.failed.rows, report.exit_code) == (6, 1, 1)
    desk.sound()


def test_an_event_that_is_missing_turns_the_shortcut_off(desk: Desk) -> None:
    """F2: the recorded counts have to be those of the database; what is missing is applied again."""
    path = desk.csv([(1, 10, "a"), (2, 20, "b")])
    desk.run(path)
    desk.forget("e.event_id = '2'")
    report = desk.run(path)
    assert (report.shortcut, report.start.applied.rows) == (False, 1)
    assert desk.effects() == {"1": 10, "2": 20}


def test_reading_again_changes_nothing_and_makes_the_shortcut_good_again(desk: Desk) -> None:
    """F2, E5: the start that reads again is a replay: its position stays at the end, findings stay as they were."""
    path = desk.csv(ROWS)
    first, before = desk.run(path, chunk_rows=2), desk.everything()
    desk.sql("update pgonce.run set touched = true")
    again = desk.run(path, chunk_rows=2)
    assert desk.everything() == before
    assert (again.run, again.exit_code) == (first.run, first.exit_code)
    assert again.start.read == first.run.read
    assert [lines for _, _, lines in desk.positions()] == [7, 7]
    assert desk.run(path).shortcut


def test_a_start_that_reads_again_reports_a_result_for_every_row(desk: Desk) -> None:
    """P1: what one start tells balances too, with the findings that stand already."""
    path = desk.csv(ROWS)
    desk.run(path, chunk_rows=2)
    desk.sql("update pgonce.run set touched = true")
    start = desk.run(path, chunk_rows=2).start
    assert (start.already.rows, start.failed.rows, start.conflict.rows, start.rejected.rows) == (3, 1, 1, 1)
    assert start.balanced


def test_reading_again_does_not_count_the_same_bad_rows_twice_against_the_limit(desk: Desk) -> None:
    """F2, L4: with --max-rejected the same command again ends as it did, though the bad rows are met a second time."""
    path = desk.csv(ROWS)
    first = desk.run(path, max_rejected=3)
    desk.sql("update pgonce.run set touched = true")
    again = desk.run(path, max_rejected=3)
    assert (again.run, again.exit_code) == (first.run, first.exit_code)


def test_another_way_of_reading_the_same_content_is_refused(desk: Desk) -> None:
    """F2, I9: the reading options are part of what a run is."""
    path = desk.text("id,amount\n1,5\n", name="a.csv")
    desk.run(path)
    with pytest.raises(ContentTaken, match="reading options"):
        desk.run(path, reading=ReadingOptions(encoding="latin-1"))
    assert desk.run(path, reading=ReadingOptions(encoding="utf8")).shortcut
    assert desk.run(path, reading=ReadingOptions(compression="none")).shortcut


def test_a_changed_definition_makes_another_run_of_the_same_content(desk: Desk) -> None:
    """I9, F2: on record, by a new version; the content needs --also, and its events are replays."""
    path = desk.csv([(1, 10, "a"), (2, 20, "b")])
    desk.run(path)
    changed = make_order(ignore=("note",))
    with pytest.raises(DefinitionChanged):
        desk.run(path, order=changed)
    desk.clerk.do(lambda transaction: change(transaction, "pay", changed.definition, who="me", why="noise"))
    with pytest.raises(ContentTaken, match="definition version 1, now 2"):
        desk.run(path, order=changed)
    report = desk.run(path, order=make_order(ignore=("note",), also=True))
    assert (report.run_id, report.start.already.rows, report.start.applied.rows) == (2, 2, 0)
    assert desk.run(desk.csv([(1, 10, "other note")]), order=changed).start.already.rows == 1
    with pytest.raises(DefinitionChanged):
        desk.run(path)


def test_a_replay_of_an_open_event_of_another_run_is_looked_at_again(desk: Desk) -> None:
    """F2: the answer of a run that named a failed event of another one may change, so it is read again."""
    desk.run(desk.csv([(2, -5, "b")]))
    path = desk.csv([(1, 1, "a"), (2, -5, "b")])
    assert desk.run(path).exit_code == 1
    report = desk.run(path)
    assert (report.shortcut, report.start.failed.rows, report.start.already.rows) == (False, 1, 1)


def test_a_replayed_event_that_was_repaired_meanwhile_ends_the_run_well(desk: Desk) -> None:
    """F2, I7: after the operator reopened it and it was applied, the run that only replayed it is complete."""
    desk.run(desk.csv([(2, -5, "b")]))
    path = desk.csv([(1, 1, "a"), (2, -5, "b")])
    desk.run(path)
    desk.amend("2", 5)
    report = desk.run(path)
    assert report.start.applied.rows == 1
    assert desk.effects() == {"1": 1, "2": 5}
    assert (report.run.failed.rows, report.exit_code) == (0, 0)
    assert report.run.balanced


def test_an_input_with_a_header_and_nothing_else_is_settled(desk: Desk) -> None:
    """F1: nothing to do is done; again, it is known."""
    path = desk.text("id,amount\n", name="empty.csv")
    report = desk.run(path)
    assert (report.exit_code, report.run.read.rows) == (0, 0)
    assert desk.run(path).shortcut


def test_new_columns_are_said_and_not_compared(desk: Desk) -> None:
    """I5, F4: a column that came later is no conflict; a column that is missing is an error before anything is read."""
    desk.run(desk.csv([(1, 10, "a")]))
    report = desk.run(desk.csv([(1, 10, "a", "x"), (2, 20, "b", "y")], header="id,amount,note,extra"))
    assert (report.start.already.rows, report.start.applied.rows) == (1, 1)
    assert "'extra'" in report.notes[0]
    with pytest.raises(ConfigurationError, match="has no column 'note'"):
        desk.run(desk.csv([(3, 10)], header="id,amount"))


@pytest.mark.parametrize("history", ["clean", "failed", "crossed"])
def test_two_more_runs_change_nothing_after_any_history(desk: Desk, history: str) -> None:
    """E5: same rows, totals, findings and results."""
    path, crossing = desk.csv(ROWS), desk.csv([*reversed(ROWS), (7, 7, "z")])
    desk.run(path, chunk_rows=2)
    if history == "failed":
        desk.sql("update pgonce.event set status = 'pending', attempts = 0 where event_id = '2'")
        desk.run(path)
    if history == "crossed":
        desk.run(crossing, chunk_rows=1)
    before, reports = desk.everything(), []
    for _ in range(2):
        reports.append((desk.run(path).run, desk.run(path).exit_code))
        if history == "crossed":
            reports.append((desk.run(crossing).run, desk.run(crossing).exit_code))
    assert desk.everything() == before
    assert reports[: len(reports) // 2] == reports[len(reports) // 2 :]


def test_fields_that_change_by_themselves_can_be_left_out(desk: Desk) -> None:
    """F4: overlapping windows of a periodic fetch make no duplicates and no conflicts."""
    for minute in range(4):
        rows = [(number, number, f"10:0{minute}") for number in range(1 + minute, 6 + minute)]
        desk.run(desk.csv(rows, header="id,amount,fetched_at"), ignore=("fetched_at",))
    assert desk.effects() == {str(number): number for number in range(1, 9)}
    assert desk.findings() == []


def test_a_start_that_reads_a_finished_input_again_accounts_for_every_row(desk: Desk) -> None:
    """P1: its own numbers balance too, findings among them, though those were kept by the first start."""
    path = desk.csv([("a", 5, "x"), ("a", 6, "y"), ("", 1, "z"), ("b", -1, "w"), ("a", 5, "x")])
    desk.run(path)
    desk.sql("update pgonce.run set touched = true")
    again = desk.run(path)
    assert (again.shortcut, again.start.balanced, again.run.balanced) == (False, True, True)
    counts = again.start
    assert (counts.already.rows, counts.conflict.rows, counts.rejected.rows, counts.failed.rows) == (2, 1, 1, 1)
