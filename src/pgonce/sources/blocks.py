"""Cut a stream of bytes into blocks of whole lines, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

# A record is held in memory as a whole; PostgreSQL and its drivers take 1 MiB in one value with ease, and a "record"
# that is longer is nearly always a quote that was never closed.
MAX_RECORD_BYTES = 1024 * 1024
# Large enough that the cost per block vanishes, small enough to stay in the processor's cache.
BLOCK_BYTES = 256 * 1024
BOM = b"\xef\xbb\xbf"
BOM_REASON = "begins with a byte order mark in the middle of the file (were files joined?); remove the mark"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines (the last line of an input may lack its line feed), or, if ``torn``, a part of one over-long line.

    The last part of an over-long line ends with its line feed, or with the input.
    """

    body: bytes
    torn: bool = False


def blocks(read: Callable[[int], bytes]) -> Iterator[Block]:
    """Read blocks until ``read`` answers with no bytes. Every byte is in exactly one block, in order.

    A line of more than MAX_RECORD_BYTES comes in torn parts (or one), whole ones are never longer.
    """
    size = min(BLOCK_BYTES, MAX_RECORD_BYTES)  # so that only a line that began in an earlier block can be over-long
    carry = b""
    torn = False
    while data := read(size):
        if torn:
            end = data.find(b"\n") + 1
            yield Block(data[:end] if end else data, torn=True)
            if not end:
                continue
            torn = False
            data = data[end:]
        if carry:
            data = carry + data
            end = data.find(b"\n") + 1
            if end > MAX_RECORD_BYTES:
                yield Block(data[:end], torn=True)
                data = data[end:]
        end = data.rfind(b"\n") + 1
        carry = data[end:]
        if end:
            yield Block(data[:end])
        if len(carry) > MAX_RECORD_BYTES:
            yield Block(carry, torn=True)
            carry = b""
            torn = True
    if carry:
        yield Block(carry)
