"""Open an input: know its content by digest before the first record, and check it again while reading."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pgonce.errors import ConfigurationError, InputChanged, InputUnreadable, InvariantBroken
from pgonce.model.cursor import Cursor, Position
from pgonce.model.record import Filler, Malformed, Piece, Record
from pgonce.sources.blocks import BLOCK_BYTES, Block, blocks
from pgonce.sources.cloudevents import CloudEvents, looks_like_events
from pgonce.sources.compression import Decompressed, compression_of
from pgonce.sources.content import SharedFile, opened
from pgonce.sources.delimited import Delimited
from pgonce.sources.ndjson import Ndjson
from pgonce.sources.options import ReadingOptions, check, check_marks, resolve
from pgonce.sources.parquet import Parquet
from pgonce.sources.parquetfile import MAGIC, ParquetText

# Enough to see the first event of any real CloudEvents file.
HEAD_BYTES = 64 * 1024


class Format(Protocol):
    """What a format module offers: the columns it knows, whether it can begin at any line, and pieces from blocks."""

    @property
    def columns(self) -> tuple[str, ...] | None: ...

    @property
    def by_line(self) -> bool: ...

    @property
    def identity(self) -> tuple[str, str] | None: ...

    def pieces(self, blocks: Iterator[Block], *, offset: int, lines: int) -> Iterator[Piece]: ...


class Stream(Protocol):
    """The bytes of an input that records are made of, from the beginning."""

    def read(self, size: int) -> bytes: ...


_FORMATS: dict[str, type[Delimited] | type[Ndjson] | type[CloudEvents] | type[Parquet]] = {
    "csv": Delimited,
    "tsv": Delimited,
    "ndjson": Ndjson,
    "cloudevents": CloudEvents,
    "parquet": Parquet,
}


class Input:
    """An open input. Its name is for messages only; what it is, is its ``digest``.

    ``name`` as it was given, or ``-``. ``digest``: SHA-256 (hex) of all decompressed bytes, ``size`` their number (of
    a Parquet file, of the text that its rows stand for). ``format`` is one of FORMATS. ``columns`` are the names that
    all records have, None where each names its own. ``identity`` are the fields for source and id of an event where the
    format says what they are, else None.
    ``options`` are the reading options with everything filled in, for the record of a run.
    """

    def __init__(self, descriptor: int, name: str, options: ReadingOptions) -> None:
        self.name = name
        self._descriptor = descriptor
        check(name, options)
        self._compression = options.compression or compression_of(os.pread(descriptor, 4, 0))
        head = self._head()
        self.options = resolve(name, options, _format_said(head))
        self.format = self.options.format or ""
        self._check_magic(head)
        self.digest, self.size = self._weigh()
        if self.format != "parquet":
            check_marks(head, self.options.encoding, name)
        stream = self._stream()
        self._format: Format = _FORMATS[self.format].open(blocks(stream.read), self.options, name)
        self.columns = self._format.columns
        self.identity = self._format.identity

    def pieces(self, at: Position | None = None) -> Iterator[Piece]:
        """Yield the pieces of the input: from the beginning (the header is a `Filler`), or from a stored position.

        Together the ``raw`` of all pieces are exactly the decompressed bytes from there. A record that is skipped for
        its length or an open quote comes as fillers *followed by* its `Malformed`: store a position behind a `Record`,
        a `Malformed` or the last piece, never between a filler and what follows. (From a position inside of a skipped
        record the input is parsed again from its beginning, which is slow but right.)

        Raises InputChanged if the bytes before the position are not those of its digest, or if the whole is no longer
        what was opened. Safe to re-run: every call is a reading of its own.
        """
        reading = _Reading(self)
        last = b"\n"
        if at is not None and at.offset:
            last = reading.skip_to(at)[1]
        in_a_line = last != b"\n" or not self._format.by_line
        if at is not None and at.offset and in_a_line and at.offset < self.size:
            return self._from_within(at)
        offset, lines = (0, 0) if at is None else (at.offset, at.lines)
        return self._format.pieces(blocks(reading.read), offset=offset, lines=lines)

    def cursor(self, at: Position) -> Cursor:
        """Read and hash the bytes before a stored position and return the cursor there.

        Raises InputChanged if they are not the bytes of its digest. Safe to re-run: reads only.
        """
        return _Reading(self).skip_to(at)[0]

    def bytes_from(self, offset: int) -> Callable[[int], bytes]:
        """Return a function that reads the bytes from an offset on, up to a number of them; none at the end.

        Nothing is hashed: who reads compares the digest that it comes to at the end, with `changed` for the answer.
        Safe to re-run: every call is a reading of its own.
        """
        stream = self._stream()

        def read(size: int) -> bytes:
            try:
                return stream.read(size)
            except (InputUnreadable, ConfigurationError) as error:
                raise self.changed() from error

        while offset and (data := read(min(offset, BLOCK_BYTES))):
            offset -= len(data)
        return read

    def changed(self) -> InputChanged:
        """Make the error that says that the content is no longer the one that was opened."""
        return InputChanged(
            f"{self.name}: changed while it was read; rows already committed stay, run again on a file at rest"
        )

    def pieces_of(self, blocks: Iterator[Block], at: Position) -> Iterator[Piece]:
        """Yield the pieces of blocks that begin at a position between two records. Safe to re-run: it only reads."""
        return self._format.pieces(blocks, offset=at.offset, lines=at.lines)

    @property
    def header_end(self) -> int:
        """The byte behind the header of a CSV or TSV file; 0 where there is none."""
        return self._format.header_end if isinstance(self._format, Delimited) else 0

    def _from_within(self, at: Position) -> Iterator[Piece]:
        offset = 0
        for piece in self.pieces():
            begin, offset = offset, offset + len(piece.raw)
            if offset <= at.offset:
                continue
            if begin >= at.offset:
                yield piece
            else:
                yield self._tail(piece, at.offset - begin)

    def _tail(self, piece: Piece, count: int) -> Piece:
        if isinstance(piece, Record):
            raise InputChanged(
                f"{self.name}: line {piece.line} was shorter when it was taken; was the file still being written, "
                "or is it read with other options? Hand in the complete file as a new input"
            )
        if isinstance(piece, Malformed):
            return Malformed(piece.line, piece.raw[count:], piece.reason)
        return Filler(piece.raw[count:])

    def _stream(self) -> Stream:
        if self.format == "parquet":
            return ParquetText(self._descriptor, self.name)
        return self._bytes()

    def _bytes(self) -> Decompressed:
        return Decompressed(SharedFile(self._descriptor), name=self.name, compression=self._compression)

    def _head(self) -> bytes:
        stream, head = self._bytes(), b""
        while len(head) < HEAD_BYTES and (data := stream.read(HEAD_BYTES - len(head))):
            head += data
        return head

    def _check_magic(self, head: bytes) -> None:
        """Refuse Parquet under another format's name, packed again, or what is called Parquet and is not."""
        is_parquet = head.startswith(MAGIC)
        if is_parquet and self.format != "parquet":
            raise ConfigurationError(f"{self.name}: is a Parquet file, not {self.format}; say --format parquet")
        if is_parquet and self._compression != "none":
            raise ConfigurationError(f"{self.name}: is a Parquet file packed with {self._compression}; unpack it first")
        if self.format == "parquet" and not is_parquet:
            what = "is empty" if not head else "is no Parquet file: it does not begin with PAR1"
            raise ConfigurationError(f"{self.name}: {what}; was it written completely?")

    def _weigh(self) -> tuple[str, int]:
        stream, hasher, size = self._stream(), hashlib.sha256(), 0
        while data := stream.read(BLOCK_BYTES):
            hasher.update(data)
            size += len(data)
        return hasher.hexdigest(), size


class _Reading:
    """One reading of an input, hashed on the way and compared with what was opened when it ends."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._stream = source._stream()
        self._hasher = hashlib.sha256()
        self._size = 0

    def read(self, size: int) -> bytes:
        source = self._source
        try:
            data = self._stream.read(size)
        except (InputUnreadable, ConfigurationError) as error:
            raise InputChanged(f"{source.name}: changed while it was read; run again on a file at rest") from error
        self._hasher.update(data)
        self._size += len(data)
        ended = not data
        if self._size > source.size or (ended and self._hasher.hexdigest() != source.digest):
            raise source.changed()
        return data

    def skip_to(self, at: Position) -> tuple[Cursor, bytes]:
        """Read and hash the bytes before ``at``; return the cursor there and the last byte. May raise InputChanged."""
        cursor, last = Cursor.start(), b""
        while cursor.offset < at.offset:
            data = self.read(min(BLOCK_BYTES, at.offset - cursor.offset))
            if not data:
                break
            cursor, last = cursor.advance(data), data[-1:]
        if cursor.offset != at.offset or cursor.digest != at.digest:
            raise InputChanged(
                f"{self._source.name}: its first {at.offset} bytes ({at.lines} lines) are not those that were already "
                "taken and cannot be skipped; restore the file, or hand it in as a new input"
            )
        if cursor.lines != at.lines:
            raise InvariantBroken(f"stored position says {at.lines} lines before byte {at.offset}, not {cursor.lines}")
        return cursor, last


@contextmanager
def open_input(path: str | Path, options: ReadingOptions | None = None) -> Iterator[Input]:
    """Open ``path`` (``-`` is standard input), weigh its content once and read its header.

    A file is opened once: if it is renamed or replaced meanwhile, the one that was opened is read. Memory stays
    constant. Raises ConfigurationError if there is nothing to read, or options and header do not fit; InputUnreadable
    if the compressed data is damaged or cut off, before any record is given out.

    Safe to re-run: reads only.
    """
    options = options or ReadingOptions()
    check(str(path), options)
    with opened(path) as descriptor:
        yield Input(descriptor, _name(path), options)


def _format_said(head: bytes) -> str | None:
    """Tell the format from the first bytes where they say it."""
    if head.startswith(MAGIC):
        return "parquet"
    return "cloudevents" if looks_like_events(head) else None


def _name(path: str | Path) -> str:
    """Write a name as text that can be stored and printed, also if its bytes are not UTF-8."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
