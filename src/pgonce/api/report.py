"""The file of a row report: whole under its name or not there; reserved before a run, written after its end."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pgonce.engine.bookkeeping import Clerk
from pgonce.engine.rowreport import Reported, report_lines
from pgonce.errors import ConfigurationError, Interrupted, PgonceError, Retryable
from pgonce.sources import Input

STANDARD_OUTPUT = "-"
STANDARD_OUTPUT_DESCRIPTOR = 1

# Added to the report's own name while it is written. Always the same, so that what a killed process left is used again.
SUFFIX = ".part"


@dataclass(slots=True, kw_only=True)
class RowReportFile:
    """Where a row report goes. ``part`` is the file it is written to, None if that has its name already."""

    name: str
    descriptor: int
    target: Path
    part: Path | None

    def write(self, clerk: Clerk, source: Input, what: Reported, *, interrupted: Callable[[], bool]) -> None:
        """Write the report, bring it to disk, and give it its name.

        Raises Retryable when it could not be written although the run is complete; Interrupted when asked to stop.
        Safe to re-run: yes; an older report of that name is replaced as a whole, or stays.
        """
        try:
            for lines in report_lines(clerk, source, what, interrupted=interrupted):
                _write_all(self.descriptor, lines)
            self._take_name()
        except Interrupted:
            raise
        except (OSError, PgonceError) as error:
            raise Retryable(
                f"the run is complete, but its row report {self.name} could not be written: {error}. Nothing of the "
                "run is undone; run the same command again when that is corrected: it repeats the answer and writes "
                "the report",
                job=what.job,
            ) from error

    def _take_name(self) -> None:
        if self.part is None:
            return
        os.fsync(self.descriptor)
        self.part.replace(self.target)
        self.part = None
        folder = os.open(self.target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def row_report_file(path: str | Path, *, input_name: str) -> Iterator[RowReportFile]:
    """Reserve the place of a report while the body runs; ``-`` is standard output.

    Raises ConfigurationError at once when nothing can be written there, or when it is the input itself.
    Safe to re-run: yes; what did not get its name is removed, and what a killed process left is used again.
    """
    try:
        file = _reserved(str(path), input_name)
    except OSError as error:
        raise ConfigurationError(
            f"the row report {path} cannot be written: {error.strerror or error}. Nothing was run; name a file in a "
            "folder that exists and may be written to"
        ) from error
    try:
        yield file
    finally:
        if file.part is not None:
            with suppress(OSError):
                file.part.unlink()
        os.close(file.descriptor)


def _reserved(path: str, input_name: str) -> RowReportFile:
    """Open what the report is written to: standard output, a device or pipe as it is, else a file beside the name."""
    target = Path(os.path.realpath(path))
    if path == STANDARD_OUTPUT:
        out = os.dup(STANDARD_OUTPUT_DESCRIPTOR)
        return RowReportFile(name="on standard output", descriptor=out, target=target, part=None)
    if target.exists() and not target.is_file():
        return RowReportFile(name=path, descriptor=os.open(target, os.O_WRONLY), target=target, part=None)
    if target.exists() and os.path.exists(input_name) and os.path.samefile(target, input_name):
        raise ConfigurationError(f"the row report {path} would replace the input; give it another name")
    part = target.with_name(target.name + SUFFIX)
    return RowReportFile(name=path, descriptor=_owned(part), target=target, part=part)


def _owned(part: Path) -> int:
    """Open a file, empty, that no other process is writing to; the lock ends with this process however it ends."""
    while True:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(part, descriptor):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigurationError(
                f"another process is writing the row report ({part}); give this one another name"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_still(part: Path, descriptor: int) -> bool:
    """Say whether the name still leads to the open file: between open and lock another process may have renamed it."""
    try:
        found = part.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
