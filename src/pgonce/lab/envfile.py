"""``lab.env``: the file in the current folder by which a shell, and the next command, find the lab."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from pgonce.errors import ConfigurationError

NAME = "lab.env"
BYTES_MAX = 4096
"""A lab.env has some 20 lines; what is longer was not written here."""

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

_LAB_DIR = re.compile(r"^export LAB_DIR='([^'\n]+)'$", re.MULTILINE)


def isolate(environment: MutableMapping[str, str]) -> None:
    """Take everything out of an environment that could lead a client elsewhere. Safe to re-run: yes."""
    for name in MISLEADING:
        environment.pop(name, None)


def write(path: Path, folder: Path) -> None:
    """Write the file for a lab's folder. Raises ConfigurationError if there is one; nothing is overwritten."""
    lines = [
        "# Written by `pgonce lab up`, removed by `pgonce lab clean`. To be read by a shell: . ./lab.env",
        f"export LAB_DIR='{folder}'",
        'export PATH="$LAB_DIR/bin:$PATH"',
        *(f"unset {name}" for name in MISLEADING),
    ]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise ConfigurationError(
            f"{str(path)!r} is there already, so a lab is up here, or one was not cleaned. Look at it with "
            "`pgonce lab whoami`; `pgonce lab clean` stops and removes it. Nothing was changed."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be written: {error.strerror}. Change to a folder that you may write, then run again."
        ) from error
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{str(path)!r} cannot be written: {error.strerror}. Free some space, then run again."
        ) from error


def read(path: Path) -> Path | None:
    """Return the folder that the file names, None if there is no file. Raises ConfigurationError for another file."""
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error.strerror}. Nothing was changed.") from error
    found = _LAB_DIR.search(text)
    if found is None:
        raise ConfigurationError(
            f"{str(path)!r} is not a file of pgonce's lab: it has no line export LAB_DIR='...'. "
            "Move it away, or change to another folder. Nothing was changed."
        )
    return Path(found[1])
