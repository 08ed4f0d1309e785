"""The working folder of the program under test: a copy of the original, put back before each point."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgonce.errors import ConfigurationError

# What is copied once and walked before each point; a folder with more is no working folder but an archive.
COPY_BYTES_MAX = 1 << 30
COPY_FILES_MAX = 100_000

# Installed packages and history: the program reads them, and copies of them would be slow and could not be moved.
LINKED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", ".tox", ".nox", ".mypy_cache", ".ruff_cache"})

# Home and temporary folder, in the working folder's copy but not part of what the program's own folder holds.
HOME, TMP = ".crashtest-home", ".crashtest-tmp"

Mark = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pristine copy and what its working copy looks like when nobody has touched it."""

    pristine: Path
    work: Path
    marks: dict[str, Mark]


def prepare(original: Path | None, folder: Path, *, not_copied: frozenset[Path] = frozenset()) -> Snapshot:
    """Copy the original (None: an empty folder) twice below ``folder``. Raises ConfigurationError if it is huge."""
    pristine, work = folder / "pristine", folder / "work"
    pristine.mkdir(mode=0o700)
    if original is not None:
        _refuse_huge(original)
        with _explained(original):
            shutil.copytree(original, pristine, symlinks=True, ignore=_left_out, dirs_exist_ok=True)
            for path in not_copied:
                if path.absolute().is_relative_to(original.absolute()):
                    (pristine / path.absolute().relative_to(original.absolute())).unlink(missing_ok=True)
            for name in sorted(LINKED):
                if (original / name).is_dir():
                    (pristine / name).symlink_to((original / name).resolve(), target_is_directory=True)
    for name in (HOME, TMP):
        (pristine / name).mkdir(mode=0o700, exist_ok=True)
    shutil.copytree(pristine, work, symlinks=True)
    return Snapshot(pristine, work, _marks(work))


def bytes_of(original: Path | None) -> int:
    """Return how much `prepare` would copy, at most a little more than it takes. Raises ConfigurationError."""
    return _measured(original)[0] if original is not None else 0


def reset(snapshot: Snapshot) -> Snapshot:
    """Put back what was changed, made or removed in the working copy; return what it looks like now."""
    now = _marks(snapshot.work)
    if now == snapshot.marks:
        return snapshot
    strange = [name for name, mark in now.items() if snapshot.marks.get(name) != mark]
    missing = [name for name in snapshot.marks if name not in now]
    for name in sorted(strange, reverse=True):
        _remove(snapshot.work / name)
    for name in sorted({name for name in [*strange, *missing] if name in snapshot.marks}):
        _restore(snapshot, name)
    marks = dict(snapshot.marks)
    found = _marks(snapshot.work)
    for name in marks:
        marks[name] = found.get(name, marks[name])
    if found.keys() != marks.keys():
        raise ConfigurationError(f"the working folder {str(snapshot.work)!r} could not be put back as it was")
    return Snapshot(snapshot.pristine, snapshot.work, marks)


def digest_files(folder: Path, globs: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of every file that a glob names, by its path in the folder."""
    found: dict[str, str] = {}
    for glob in globs:
        for path in sorted(folder.glob(glob)):
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def fingerprint(folder: Path) -> str:
    """Return a digest of all files of a folder, their names, modes and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else b""
        digest.update(
            f"{path.relative_to(folder)}\0{info.st_mode}\0{len(content)}\0".encode("utf-8", "surrogateescape")
        )
        digest.update(content)
    return digest.hexdigest()


def _marks(root: Path) -> dict[str, Mark]:
    """Look at everything below a folder; a change of content or kind changes its mark, which no program can forge."""
    found: dict[str, Mark] = {}
    waiting = [("", root)]
    while waiting:
        prefix, folder = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    found[name] = (info.st_mode, 0, 0, 0, 0)
                    waiting.append((f"{name}/", folder / entry.name))
                else:
                    found[name] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    return found


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _restore(snapshot: Snapshot, name: str) -> None:
    source, target = snapshot.pristine / name, snapshot.work / name
    if source.is_dir() and not source.is_symlink():
        if not target.exists():
            shutil.copytree(source, target, symlinks=True)
        shutil.copystat(source, target)
    elif not os.path.lexists(target):
        shutil.copy2(source, target, follow_symlinks=False)


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Leave out what is linked instead, compiled files, and what cannot be copied: sockets, pipes, devices."""
    out = {name for name in names if name in LINKED or name == "__pycache__"}
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            out.add(name)
    return out


def _refuse_huge(original: Path) -> None:
    size, files = _measured(original)
    if size > COPY_BYTES_MAX or files > COPY_FILES_MAX:
        raise ConfigurationError(
            f"the working folder {str(original)!r} has more than {COPY_BYTES_MAX >> 20} MB or "
            f"{COPY_FILES_MAX:,} files, too much to copy; name the folder the program needs with --workdir"
        )


def _measured(original: Path) -> tuple[int, int]:
    """Return the bytes and the number of files that would be copied; not much is looked at beyond what is too much."""
    size = files = 0
    with _explained(original):
        if not original.is_dir():
            raise ConfigurationError(f"{str(original)!r} is not a folder; name the program's working folder")
        for folder, folders, names in os.walk(original):
            folders[:] = [name for name in folders if name not in LINKED]
            files += len(names)
            size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
            if size > COPY_BYTES_MAX or files > COPY_FILES_MAX:
                break
    return size, files


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, shutil.Error) as error:
        raise ConfigurationError(f"cannot copy the working folder {str(folder)!r}: {error}") from error
