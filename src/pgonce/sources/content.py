"""The bytes of an input behind one descriptor: a file as it was opened, or a copy of what can be read only once."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from pgonce.errors import ConfigurationError

_COPY_BYTES = 1024 * 1024


class SharedFile(io.RawIOBase):
    """A readable stream with a place of its own over a descriptor that others read too. Closing it closes nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        count = os.preadv(self._descriptor, [cast("bytearray", buffer)], self._offset)
        self._offset += count
        return count


@contextmanager
def opened(path: str | Path) -> Iterator[int]:
    """Give a descriptor of the content of ``path`` (``-`` is standard input), good for positioned reads.

    What is not a regular file (standard input, a pipe) is first copied to a temporary file without a name, of which
    nothing remains however the process ends. Raises ConfigurationError with a remedy if there is nothing to read.
    """
    if str(path) == "-":
        with _spooled(_standard_input(), "standard input") as descriptor:
            yield descriptor
        return
    with _open(path) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield file.fileno()
        else:
            with _spooled(file, str(path)) as descriptor:
                yield descriptor


def _open(path: str | Path) -> BinaryIO:
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file; check the name, or use - for standard input") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a directory; name one file in it") from None
    except PermissionError:
        raise ConfigurationError(f"{path}: may not be read by this user; check its permissions") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be opened: {error}") from error


def _standard_input() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:
        raise ConfigurationError("standard input is closed; pipe the input in, or name a file")
    return sys.stdin.buffer


@contextmanager
def _spooled(stream: BinaryIO, name: str) -> Iterator[int]:
    folder = tempfile.gettempdir()
    with tempfile.TemporaryFile(prefix="pgonce-") as spool:
        try:
            shutil.copyfileobj(stream, spool, _COPY_BYTES)
            spool.flush()
        except OSError as error:
            raise ConfigurationError(
                f"{name} could not be copied to a temporary file in {folder}: {error}; "
                "make room, set TMPDIR to another folder, or hand in a file"
            ) from error
        yield spool.fileno()
