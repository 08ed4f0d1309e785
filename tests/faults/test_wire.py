"""The protocol's frames: the same whatever pieces they arrive in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.crashtest import wire
from pgonce.crashtest.clientstream import REMEMBERED_BYTES_MAX, ClientStream
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


def test_a_query_that_comes_alone_is_cut_as_among_others() -> None:
    """The short way for a message that is one whole Query gives what the long way gives, whatever came before it."""
    unit = wire.extended("select 1")
    messages = [
        wire.query("begin; select ';'; select 2"),
        unit,
        wire.query("commit;"),
        unit[:-5],
        wire.query("select 3"),
        wire.frame(b"S"),
        wire.query(f"select '{'x' * REMEMBERED_BYTES_MAX}'"),
        wire.query("commit;"),
    ]
    stream = b"".join(messages)
    cuts = [messages, [stream], [stream[at : at + 1] for at in range(len(stream))]]
    for pipelined in (False, True):
        found = []
        for pieces in cuts:
            client = ClientStream(pipelined=pipelined)
            segments = [one for piece in pieces for one in client.feed(piece)]
            assert b"".join(one.data for one in segments) == stream
            found.append([one for one in segments if one.kind])
        assert found[0] == found[1] == found[2]
        assert [one.statements for one in found[0] if one.kind is Kind.QUERY] == [3, 1, 1, 1, 1]


def test_spans_of_other_types_are_left_out_when_they_are_not_wanted() -> None:
    """Only what is asked for is given, at the same places, and the buffer is whole all the same."""
    stream = (
        wire.frame(b"T", b"x") + wire.frame(b"D", b"y" * 20) * 50 + wire.frame(b"C", b"z") + wire.ready_for_query("I")
    )
    buffer, spans = wire.Splitter().feed(stream, only=frozenset(b"CZ"))
    assert buffer == stream
    assert spans == [span for span in wire.Splitter().feed(stream)[1] if span[0] in b"CZ"]
    assert bytes(tag for tag, _, _ in spans) == b"CZ"


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
