"""``lab.env``: the file in the current folder by which a shell, and the next command, find the lab."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import MutableMapping
from pathlib import Path

from pgonce.errors import ConfigurationError

NAME = "lab.env"
BYTES_MAX = 4096
"""A lab.env has some 60 short lines; what is longer was not written here."""

# All variables that libpq reads (PostgreSQL 18, "Environment Variables"), those of psql, and older ones. Each of them
# could lead a client of the lab elsewhere, or change what it shows.
MISLEADING = (
    *("PGAPPNAME", "PGCHANNELBINDING", "PGCLIENTENCODING", "PGCONNECT_TIMEOUT", "PGDATABASE", "PGDATESTYLE"),
    *("PGGEQO", "PGGSSDELEGATION", "PGGSSENCMODE", "PGGSSLIB", "PGHOST", "PGHOSTADDR", "PGKRBSRVNAME"),
    *("PGLOADBALANCEHOSTS", "PGLOCALEDIR", "PGMAXPROTOCOLVERSION", "PGMINPROTOCOLVERSION", "PGOPTIONS", "PGPASSFILE"),
    *("PGPASSWORD", "PGPORT", "PGREALM", "PGREQUIREAUTH", "PGREQUIREPEER", "PGREQUIRESSL", "PGSERVICE"),
    *("PGSERVICEFILE", "PGSSLCERT", "PGSSLCERTMODE", "PGSSLCOMPRESSION", "PGSSLCRL", "PGSSLCRLDIR", "PGSSLKEY"),
    *("PGSSLKEYLOGFILE", "PGSSLMAXPROTOCOLVERSION", "PGSSLMINPROTOCOLVERSION", "PGSSLMODE", "PGSSLNEGOTIATION"),
    *("PGSSLROOTCERT", "PGSSLSNI", "PGSYSCONFDIR", "PGTARGETSESSIONATTRS", "PGTZ", "PGUSER"),
    *("PSQLRC", "PSQL_EDITOR", "PSQL_HISTORY", "PSQL_PAGER", "PSQL_WATCH_PAGER"),
)

_LAB_DIR = re.compile(r"^export LAB_DIR='(/[\w./+-]{1,300})'$", re.MULTILINE | re.ASCII)
_NONCE = re.compile(r"^# ([0-9a-f]{16})$", re.MULTILINE)


def isolate(environment: MutableMapping[str, str]) -> None:
    """Take everything out of an environment that could lead a client elsewhere. Safe to re-run: yes."""
    for name in MISLEADING:
        environment.pop(name, None)


def write(path: Path, folder: Path, programs: Path, nonce: str) -> None:
    """Write the file for a lab's folder, whole or not at all. Raises ConfigurationError if there is one already."""
    lines = [
        "# Written by `pgonce lab up`, removed by `pgonce lab clean`. To be read by a shell: . ./lab.env",
        f"# {nonce}",
        f"export LAB_DIR='{folder}'",
        f"export PATH='{programs}':\"$PATH\"",
        *(f"unset {name}" for name in MISLEADING),
    ]
    try:
        _write_whole(path, "\n".join(lines) + "\n")
    except FileExistsError as error:
        raise ConfigurationError(
            f"{str(path)!r} is there already, so a lab is up here, or one was not cleaned. Look at it with "
            "`pgonce lab whoami`; `pgonce lab clean` stops and removes it. Nothing was changed."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be written: {error.strerror}. Make room, or change to a folder that you may write, "
            "then run again."
        ) from error


def read(path: Path) -> Path | None:
    """Return the folder that the file names, None if there is no file or an empty one, as a killed ``write`` leaves.

    Raises ConfigurationError for another file.
    """
    text = _text(path)
    if not text:
        return None
    found = _LAB_DIR.search(text)
    if found is None:
        raise ConfigurationError(
            f"{str(path)!r} is not a file of pgonce's lab: it has no line export LAB_DIR='...'. "
            "Move it away, or change to another folder. Nothing was changed."
        )
    return Path(found[1])


def nonce_of(path: Path) -> str:
    """Return the chance letters that this file was written with; empty if it has none."""
    found = _NONCE.search(_text(path) or "")
    return found[1] if found else ""


def remove(path: Path, folder: Path | None) -> None:
    """Remove the file if it leads to this folder (None: if it is empty). Safe to re-run: another one is left alone."""
    with contextlib.suppress(ConfigurationError, OSError):
        if read(path) == folder:
            path.unlink()


def _text(path: Path) -> str | None:
    """Read a regular file; whatever else has this name is never waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigurationError(f"{str(path)!r} is not a regular file. Move it away. Nothing was changed.")
            return file.read(BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error.strerror}. Nothing was changed.") from error


def _write_whole(path: Path, text: str) -> None:
    """Make the file and write it in one call, so that whoever is killed leaves it whole or empty."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            file.write(text.encode())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
