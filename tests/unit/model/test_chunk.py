"""Chunks can be taken apart at any row, and every part knows its own end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgonce.model.chunk import Chunk, Entry
from pgonce.model.cursor import Cursor
from pgonce.model.row import Finding


def chunk_of(raws: list[bytes], tail: bytes = b"") -> Chunk:
    begin = Cursor.start().advance(b"header\n")
    entries = tuple(Entry(raw, Finding(number, "rejected", "", raw)) for number, raw in enumerate(raws, 2))
    return Chunk(begin, entries, begin.advance([*raws, tail]))


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=2, max_size=9), st.binary(max_size=5))
def test_halves_follow_each_other_and_end_where_the_whole_ends(raws: list[bytes], tail: bytes) -> None:
    whole = chunk_of(raws, tail)
    earlier, later = whole.halves()
    assert earlier.entries + later.entries == whole.entries
    assert earlier.entries
    assert later.entries
    assert earlier.end.position == later.begin.position
    assert later.end.position == whole.end.position


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=9), st.data())
def test_until_ends_behind_the_last_row_it_keeps(raws: list[bytes], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(raws)))
    part = chunk_of(raws).until(count)
    assert len(part.entries) == count
    assert part.end.position == part.begin.advance(raws[:count]).position
