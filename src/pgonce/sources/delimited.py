"""Read CSV and TSV: the standard csv module in strict mode says what a record is, this module which bytes it came from.

The csv module is handed one physical line at a time and takes further lines only while a quoted field is open. So the
lines taken since the last record are exactly the bytes of the next one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import chain
from typing import Literal

from pgonce.errors import ConfigurationError
from pgonce.model.record import Filler, Malformed, Piece, Record
from pgonce.sources.blocks import BOM, BOM_REASON, MAX_RECORD_BYTES, Block
from pgonce.sources.options import ReadingOptions, check_names
from pgonce.sources.skipping import QuoteScan, Skipped

_NUL_REASON = "contains a NUL byte, which text must not; if the file is UTF-16, convert it to UTF-8"
_TOO_LONG_REASON = f"the record is longer than {MAX_RECORD_BYTES} bytes"


class Delimited:
    """The CSV or TSV format of one input: its columns, and how its blocks become pieces."""

    by_line = True
    identity = None

    def __init__(self, options: ReadingOptions, columns: tuple[str, ...], header_end: int) -> None:
        self.columns: tuple[str, ...] | None = columns
        self._options = options
        self._names = columns
        self.header_end = header_end

    @classmethod
    def open(cls, blocks: Iterator[Block], options: ReadingOptions, name: str) -> Delimited:
        """Read the header, if there is one. Raises ConfigurationError if the columns cannot be told from it."""
        if not options.header:
            return cls(options, options.columns or (), 0)
        reader = _Reader(blocks, options, None, offset=0, lines=0)
        header_end = 0
        for piece in reader.pieces():
            if isinstance(piece, Malformed):
                raise ConfigurationError(f"{name}: the header (line {piece.line}) cannot be read: {piece.reason}")
            header_end += len(piece.raw)
            if reader.columns is not None:
                check_names(reader.columns, f"{name}, header")
                return cls(options, reader.columns, header_end)
        raise ConfigurationError(
            f"{name}: is empty, without even a header; was it written completely? "
            "For a file without a header give --no-header and --columns"
        )

    def pieces(self, blocks: Iterator[Block], *, offset: int, lines: int) -> Iterator[Piece]:
        """Yield the pieces of ``blocks``, which begin at ``offset`` behind ``lines`` line feeds."""
        columns = None if offset < self.header_end else self._names
        return _Reader(blocks, self._options, columns, offset=offset, lines=lines).pieces()


class _Reader:
    """One reading. ``columns`` is None until the header was met."""

    def __init__(
        self,
        blocks: Iterator[Block],
        options: ReadingOptions,
        columns: tuple[str, ...] | None,
        *,
        offset: int,
        lines: int,
    ) -> None:
        self.columns = columns
        self._blocks = blocks
        self._delimiter = options.delimiter or ","
        self._quotechar = options.quotechar
        self._encoding = options.encoding
        self._utf8 = options.encoding == "utf-8"
        self._at_start = offset == 0
        self._line = lines + 1  # the line the next record begins on
        self._block_line = lines + 1  # the line the next block begins on
        self._pairs: Iterator[tuple[bytes, str]] = iter(())  # lines not yet taken, as bytes and as text
        self._torn: bytes | None = None  # the next part of an over-long line, not yet taken
        self._taken: list[bytes] = []  # lines taken since the last record
        self._too_long = False
        self._trouble: dict[int, str] = {}  # by line, why it cannot be text

    def pieces(self) -> Iterator[Piece]:
        """Yield every piece to the end of the blocks."""
        if csv.field_size_limit() < MAX_RECORD_BYTES:  # process-wide, so it is only ever raised
            csv.field_size_limit(MAX_RECORD_BYTES)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._quotechar else csv.QUOTE_NONE
        while True:
            self._too_long = False
            rows = csv.reader(
                self._feed(), delimiter=self._delimiter, quotechar=self._quotechar, quoting=quoting, strict=True
            )
            reason = ""
            try:
                yield from self._good(rows)
            except csv.Error as error:
                reason = _plain(error)
            if self._too_long:
                reason = _TOO_LONG_REASON
            if not reason:
                return
            yield from self._skip(reason)

    def _good(self, rows: Iterator[list[str]]) -> Iterator[Piece]:
        """Yield pieces until the csv module finds an error or the lines end. This loop decides the speed of it all."""
        taken, trouble = self._taken, self._trouble
        columns = self.columns or ()
        width = len(columns) or -1
        for row in rows:
            count = len(taken)
            raw = taken[0] if count == 1 else b"".join(taken)
            taken.clear()
            line = self._line
            self._line = line + count
            if len(row) == width and not trouble:
                yield Record(line, raw, dict(zip(columns, row, strict=True)))
            else:
                yield self._judge(line, raw, row)
                columns = self.columns or ()
                width = len(columns) or -1

    def _judge(self, line: int, raw: bytes, row: list[str]) -> Piece:
        if trouble := self._settle_trouble(line, self._line):
            return Malformed(line, raw, trouble)
        if not row:
            return Filler(raw)
        if self.columns is None:
            self.columns = tuple(row)
            return Filler(raw)
        if len(row) != len(self.columns):
            return Malformed(
                line, raw, f"has {len(row)} column{'s' * (len(row) != 1)}, but {len(self.columns)} are expected"
            )
        return Record(line, raw, dict(zip(self.columns, row, strict=True)))

    def _settle_trouble(self, begin: int, end: int) -> str:
        """Forget the trouble of the lines from ``begin`` to before ``end`` and return the first reason."""
        reasons = [self._trouble.pop(line, "") for line in range(begin, end)] if self._trouble else []
        return next(filter(None, reasons), "")

    def _skip(self, reason: str) -> Iterator[Piece]:
        """Skip the record that could not be read: fillers, and one `Malformed` with the last of it."""
        first = self._line
        scan = QuoteScan(self._delimiter, self._quotechar)
        skipped = Skipped()
        taken = self._taken.copy()
        self._taken.clear()
        for number, segment in enumerate(chain(taken, self._segments()), 1):
            scan.feed(segment)
            yield from skipped.add(segment)
            if number >= len(taken) and segment.endswith(b"\n") and scan.settled:
                break
        rest = skipped.rest()
        last = first + skipped.lines - rest.endswith(b"\n")
        self._line = first + skipped.lines
        self._settle_trouble(first, self._line)
        if not scan.settled:
            reason += "; a quote in it is never closed, so that nothing behind it can be told from its text"
        if last > first:
            reason += f"; lines {first} to {last} belong to it and were not taken"
        yield Malformed(first, rest, reason)

    def _feed(self) -> Iterator[str]:
        """Hand lines to the csv module, noting their bytes; stop before a record grows too long."""
        taken = self._taken
        size = 0
        while True:
            for raw, text in self._pairs:
                if taken:
                    size = len(raw) + (size if len(taken) > 1 else len(taken[0]))
                    if size > MAX_RECORD_BYTES:
                        self._pairs = chain(((raw, text),), self._pairs)
                        self._too_long = True
                        return
                taken.append(raw)
                yield text
            if not self._next_block():
                return
            if self._torn is not None:
                self._too_long = True
                return

    def _segments(self) -> Iterator[bytes]:
        """Yield the lines, and parts of over-long lines, that were not yet taken."""
        while True:
            if self._torn is not None:
                part, self._torn = self._torn, None
                yield part
            for raw, _ in self._pairs:
                yield raw
            if not self._next_block():
                return

    def _next_block(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            return False
        if block.torn:
            self._torn = block.body
            self._block_line += block.body.endswith(b"\n")
        else:
            raws = io.BytesIO(block.body).readlines()
            self._pairs = iter(zip(raws, self._texts(block.body, raws), strict=True))
            self._block_line += len(raws)
        self._at_start = False
        return True

    def _texts(self, body: bytes, raws: list[bytes]) -> list[str]:
        """Decode the lines of a block at once, or, if something is wrong in it, line by line noting the trouble."""
        marked = self._utf8 and self._at_start and body.startswith(BOM)
        suspicious = b"\0" in body or (self._utf8 and body.find(BOM, len(BOM) if marked else 0) >= 0)
        texts: list[str] = []
        if not suspicious:
            try:
                texts = io.StringIO(body.decode(self._encoding), newline="\n").readlines()
            except UnicodeDecodeError:
                texts = []
        if len(texts) != len(raws):
            texts = [self._text(raw, line, marked) for line, raw in enumerate(raws, self._block_line)]
        if marked:
            texts[0] = texts[0].removeprefix("\ufeff")
        return texts

    def _text(self, raw: bytes, line: int, marked: bool) -> str:
        if b"\0" in raw:
            self._trouble[line] = _NUL_REASON
        elif self._utf8 and raw.startswith(BOM) and not (marked and line == 1):
            self._trouble[line] = BOM_REASON
        try:
            return raw.decode(self._encoding)
        except UnicodeDecodeError as error:
            self._trouble[line] = f"cannot be decoded as {self._encoding} at byte {error.start + 1} of line {line}"
            return raw.decode(self._encoding, "surrogateescape")


def _plain(error: csv.Error) -> str:
    message = str(error)
    if "expected after" in message:
        return "a closing quote is followed by other text"
    if "new-line character" in message:
        return "a lone carriage return stands in it; lines must end with a line feed, or carriage return and line feed"
    if "unexpected end of data" in message:
        return "the input ends inside of a quoted field"
    return f"cannot be read as delimited text ({message})"
