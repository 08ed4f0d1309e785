"""The protocol's frames: the same whatever pieces they arrive in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.crashtest import wire
from pgonce.crashtest.clientstream import ClientStream
from pgonce.crashtest.wire import Kind


@given(cuts=st.lists(st.integers(0, 2_000), max_size=20))
def test_frames_are_the_same_however_the_bytes_arrive(cuts: list[int]) -> None:
    """Boundaries, their statements and every byte are the same for any cutting of the stream."""
    copied = wire.frame(b"d", b"row" * 100)
    stream = (
        wire.query("/* c */ begin")
        + wire.extended("insert into ledger values (1)")[:-5]
        + wire.frame(b"H")
        + wire.frame(b"S")
        + wire.query("copy t from stdin")
        + copied
        + copied
        + wire.frame(b"c")
        + wire.extended("copy t from stdin")
        + copied
        + wire.frame(b"c")
        + wire.frame(b"S")
        + wire.frame(b"X")
    )
    client = ClientStream()
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    segments = [one for start, end in pairwise(edges) for one in client.feed(stream[start:end])]
    assert b"".join(segment.data for segment in segments) == stream
    assert [(one.kind, one.statement, one.is_partial, one.ends_copy) for one in segments if one.kind] == [
        (Kind.QUERY, "begin", False, False),
        (Kind.SYNC, "insert into ledger values (1)", True, False),
        (Kind.QUERY, "copy t from stdin", False, False),
        (Kind.COPY_DONE, "", False, True),
        (Kind.SYNC, "copy t from stdin", False, False),
        (Kind.SYNC, "", False, True),
        (Kind.TERMINATE, "", False, False),
    ]


def test_long_frames_of_a_server_stream_and_short_ones_stay_whole() -> None:
    """A value longer than the limit is given in pieces that add up; what follows it is found."""
    stream = wire.frame(b"D", b"v" * (2 * wire.WHOLE_BYTES_MAX)) + wire.ready_for_query("I")
    splitter = wire.Splitter()
    tags, passed = [], b""
    for start in range(0, len(stream), 70_001):
        buffer, spans = splitter.feed(stream[start : start + 70_001])
        passed += buffer
        tags += [tag for tag, _, _ in spans if tag]
        assert sum(end - start for _, start, end in spans) == len(buffer)
    assert (bytes(tags), passed) == (b"DZ", stream)


def test_bytes_that_are_no_messages_are_refused() -> None:
    """What is not PostgreSQL's protocol is named as such, in the greeting and after it."""
    with pytest.raises(wire.WireError, match="no PostgreSQL client"):
        wire.packet_length(b"GET ")
    with pytest.raises(wire.WireError, match="claims to have"):
        wire.Splitter().feed(b"Q\0\0\0\1rest")
