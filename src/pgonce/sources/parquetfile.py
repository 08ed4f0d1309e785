"""Open a Parquet file and read it as text, in constant memory: batches of rows, each rendered to lines of JSON."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

from pgonce.errors import ConfigurationError, InputUnreadable
from pgonce.sources.content import SharedFile
from pgonce.sources.options import check_names
from pgonce.sources.parquet import Kind, header_text

MAGIC = b"PAR1"
# A batch is held in memory several times over: as columns, as pieces of text, and as lines.
BATCH_BYTES = 2 * 1024 * 1024
# The size of a row is only known on average; a column that repeats one large value is small in the file and not here.
BATCH_ROWS_MAX = 2048
_READ_BYTES = 256 * 1024


class SeekableFile(SharedFile):
    """A shared file that can be read from anywhere."""

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: os.fstat(self._descriptor).st_size}[whence]
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        return self._offset


class ParquetText:
    """The text of a Parquet file as a stream of bytes.

    Raises ConfigurationError for a file that has no text (unknown columns, encrypted), InputUnreadable for one that is
    damaged or cut off.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet

            from pgonce.sources import arrowtext
        except ImportError:
            raise ConfigurationError(
                f"{name}: a Parquet file needs the module pyarrow; install it with: pip install 'pgonce[parquet]'"
            ) from None
        self._name = name
        self._errors = (pyarrow.ArrowException, OSError, ValueError, OverflowError)
        self._render = arrowtext.lines
        self._rows = 0
        try:
            self._file = pyarrow.parquet.ParquetFile(
                SeekableFile(descriptor), buffer_size=_READ_BYTES, pre_buffer=False
            )
            schema = self._file.schema_arrow
        except self._errors as error:
            raise self._refused(error) from error
        check_names(tuple(schema.names), f"{name}, columns")
        self.kinds: dict[str, Kind] = {field.name: arrowtext.kind_of(field.type, name, field.name) for field in schema}
        self._parts = self._text()
        self._buffer = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, and none only at the end."""
        while not self._buffer:
            part = next(self._parts, None)
            if part is None:
                return b""
            self._buffer = memoryview(part)
        data = bytes(self._buffer[:size])
        self._buffer = self._buffer[size:]
        return data

    def _text(self) -> Iterator[bytes]:
        yield header_text(self.kinds)
        for batch in self._batches():
            yield self._render(batch, self.kinds)
            self._rows += batch.num_rows

    def _batches(self) -> Iterator[Any]:
        for number in range(self._file.num_row_groups):
            group = self._file.metadata.row_group(number)
            if not group.num_rows:
                continue
            average = max(1, group.total_byte_size // group.num_rows)
            rows = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // average))
            try:
                yield from self._file.iter_batches(batch_size=rows, row_groups=[number], use_threads=False)
            except self._errors as error:
                raise InputUnreadable(
                    f"{self._name}: the Parquet data is damaged in or after row {self._rows + 1} "
                    f"({_first_line(error)}); nothing of the file was taken. Fetch the file again and run again"
                ) from error

    def _refused(self, error: BaseException) -> ConfigurationError | InputUnreadable:
        text = _first_line(error)
        if "encrypt" in text.lower() or "decrypt" in text.lower():
            return ConfigurationError(f"{self._name}: is encrypted ({text}); decrypt it first")
        return InputUnreadable(
            f"{self._name}: is no whole Parquet file ({text}); was it written completely? Fetch the file again and run "
            "again"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
