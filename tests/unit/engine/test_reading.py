"""Chunks cover the input without a gap, end behind rows only, and keep near their time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pgonce.engine import reading
from pgonce.engine.pace import Pace
from pgonce.model.chunk import Chunk
from pgonce.model.cursor import Cursor
from pgonce.model.definition import Definition
from pgonce.model.limits import Limits
from pgonce.model.row import RowReader
from pgonce.sources import open_input

DEFINITION = Definition(key=("id",)).resolved(("id", "v"))


def chunks_of(path: Path, rows: int, after: int = 0) -> list[Chunk]:
    with open_input(path) as source:
        reader = RowReader(DEFINITION, "")
        begin = Cursor.start()
        found = list(reading.chunks(source, reader, begin, lambda: rows))
        if not after:
            return found
        return list(reading.chunks(source, reader, source.cursor(found[after - 1].end.position), lambda: rows))


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_chunks_follow_each_other_and_the_last_ends_at_the_end(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "in.csv"
    content = b"\n\nid,v\n\na,1\n\n\nb,2\nbad\nc,3\n\n\n"
    path.write_bytes(content)
    found = chunks_of(path, rows)
    assert [entry.row.line for chunk in found for entry in chunk.entries] == [5, 8, 9, 10]
    assert all(len(chunk.entries) <= rows for chunk in found)
    assert all(one.end.position == two.begin.position for one, two in itertools.pairwise(found))
    assert found[-1].end.position == Cursor.start().advance(content).position


def test_reading_goes_on_from_the_end_of_any_chunk(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id,v\na,1\nb,"two\nlines"\n\nc,3\n')
    whole = chunks_of(path, 1)
    for done in range(1, len(whole)):
        rest = chunks_of(path, 1, after=done)
        assert [chunk.entries for chunk in rest] == [chunk.entries for chunk in whole[done:]]


def test_a_header_alone_is_one_chunk_without_rows_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,v\n")
    (chunk,) = chunks_of(path, 10)
    assert (chunk.entries, chunk.end.offset) == ((), 5)


def test_many_bytes_without_a_row_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CARRIED_BYTES_MAX", 100)
    path = tmp_path / "in.csv"
    path.write_text("id,v\na,1\n" + "\n" * 1000 + "b,2\n")
    found = chunks_of(path, 10)
    assert [len(chunk.entries) for chunk in found] == [1, 1]
    assert max(len(entry.raw) for chunk in found for entry in chunk.entries) < 300
    assert found[-1].end.offset == path.stat().st_size


def test_wide_rows_end_a_chunk_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES_MAX", 100)
    path = tmp_path / "in.csv"
    path.write_text("id,v\n" + "".join(f"{number},{'x' * 40}\n" for number in range(9)))
    assert [len(chunk.entries) for chunk in chunks_of(path, 1000)] == [3, 3, 3, 0]


def test_the_pace_halves_slow_chunks_and_never_exceeds_what_was_asked() -> None:
    pace = Pace(Limits(chunk_rows=1000, chunk_seconds=1.0))
    sizes = []
    for took_s in (10.0, 10.0, 0.6, 0.001, 0.001, 0.001):
        sizes.append(pace.rows())
        pace.took(took_s)
    assert sizes == [1000, 500, 250, 416, 832, 1000]
