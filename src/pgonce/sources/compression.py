"""Look through gzip and zstd, in constant memory, with errors that say where the data ends."""

from __future__ import annotations

import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import BinaryIO, cast

from pgonce.errors import ConfigurationError, InputUnreadable

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE_MAGIC_TAIL = b"\x2a\x4d\x18"


def compression_of(head: bytes) -> str:
    """Tell ``none``, ``gzip`` or ``zstd`` from the first four bytes of a file."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    if head.startswith(ZSTD_MAGIC):
        return "zstd"
    if head[1:4] == _ZSTD_SKIPPABLE_MAGIC_TAIL and head[0] >> 4 == 5:
        return "zstd"
    return "none"


class Decompressed:
    """A stream of decompressed bytes over ``raw``, which counts them for its error messages."""

    def __init__(self, raw: io.RawIOBase, *, name: str, compression: str) -> None:
        buffered = io.BufferedReader(raw)
        self._name = name
        self._compression = compression
        self._offset = 0
        self._lines = 0
        self._errors: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error)
        if compression == "gzip":
            self._stream = cast("BinaryIO", gzip.GzipFile(fileobj=buffered))
        elif compression == "zstd":
            zstd = _zstd(name)
            self._errors += (zstd.ZstdError,)
            self._stream = cast("Callable[[BinaryIO], BinaryIO]", zstd.ZstdFile)(buffered)
        else:
            self._stream = buffered

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, and none only at the end. Raises InputUnreadable where the data is broken."""
        try:
            data = self._stream.read(size)
        except self._errors as error:
            raise InputUnreadable(self._message(error)) from error
        self._offset += len(data)
        self._lines += data.count(b"\n")
        return data

    def _message(self, error: Exception) -> str:
        place = f"after byte {self._offset} of its content (in or after line {self._lines + 1})"
        if self._compression == "none":
            return f"{self._name}: cannot be read on {place}: {error}; repair the file or the disk and run again"
        what = "ends in the middle" if isinstance(error, EOFError) else f"is damaged ({error})"
        return (
            f"{self._name}: the {self._compression} data {what} {place}; nothing of the file was taken. "
            "Fetch the file again and run again"
        )


def _zstd(name: str) -> ModuleType:
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigurationError(
            f"{name}: zstd data needs the module {module}; install it with: pip install 'pgonce[zstd]', "
            "or decompress the file first"
        ) from None
