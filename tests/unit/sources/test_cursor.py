"""A cursor counts and hashes what it was moved over, and never changes."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from pgonce.model.cursor import Cursor, Position

PARTS = st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"a\r\n", b""]), max_size=12)


@given(PARTS)
def test_cursor_says_offset_lines_and_digest_of_all_bytes_before_it(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    cursor = Cursor.start().advance(parts)
    assert cursor.position == Position(len(whole), whole.count(b"\n"), hashlib.sha256(whole).hexdigest())


@given(PARTS)
def test_moving_at_once_or_in_steps_leads_to_the_same_position(parts: list[bytes]) -> None:
    stepped = Cursor.start()
    for part in parts:
        stepped = stepped.advance(part)
    assert (
        stepped.position
        == Cursor.start().advance(iter(parts)).position
        == Cursor.start().advance(b"".join(parts)).position
    )


def test_a_cursor_that_was_advanced_stays_where_it_was() -> None:
    """The cursor of the last commit must survive a chunk that is rolled back."""
    first = Cursor.start().advance(b"id\n")
    before = first.position
    first.advance(b"1\n")
    assert first.position == before
    assert first.advance(b"2\n").position == Cursor.start().advance(b"id\n2\n").position


def test_same_place_behind_other_bytes_is_another_position() -> None:
    assert Cursor.start().advance(b"a\n").position != Cursor.start().advance(b"b\n").position
