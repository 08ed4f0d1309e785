"""The environment of the program under test: nothing in it names a database but the one behind the proxy."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pgonce.crashtest import workdir
from pgonce.errors import ConfigurationError

# The server behind the proxy asks for no password; programs that want to send one have this.
PASSWORD = "crashtest"  # noqa: S105 (a word for a server that exists for a minute and asks nobody)

# The program is told by its environment; what runs it should not write into the folder that is compared.
QUIET = {"PYTHONDONTWRITEBYTECODE": "1"}

_URL = re.compile(r"(?:jdbc:)?postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the program finds its database."""

    host: str
    port: int
    user: str
    database: str
    password: str = PASSWORD

    def fields(self) -> dict[str, str]:
        """Return what a template may name in braces."""
        user, password, database = (quote(word, safe="") for word in (self.user, self.password, self.database))
        url = f"{user}:{password}@{self.host}:{self.port}/{database}"
        return {
            "dsn": f"postgresql://{url}",
            "host": self.host,
            "port": str(self.port),
            "user": self.user,
            "password": self.password,
            "database": self.database,
        }


def build(
    inherited: Mapping[str, str], address: Address, *, assignments: Sequence[str], work: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment, and the names of variables that were left out because they name another database.

    ``assignments`` are ``NAME=text``, where the text may hold ``{dsn}``, ``{host}``, ``{port}``, ``{user}``,
    ``{password}`` and ``{database}``. Raises ConfigurationError for one that is not of that form.
    """
    dropped = tuple(sorted(name for name, value in inherited.items() if _names_a_database(name, value)))
    kept = {name: value for name, value in inherited.items() if name not in dropped}
    made = {
        "HOME": str(work / workdir.HOME),
        "TMPDIR": str(work / workdir.TMP),
        "PWD": str(work),
        "PGHOST": address.host,
        "PGPORT": str(address.port),
        "PGUSER": address.user,
        "PGDATABASE": address.database,
        "PGPASSWORD": address.password,
        "PGSSLMODE": "disable",
        "PGGSSENCMODE": "disable",
        "DATABASE_URL": address.fields()["dsn"],
    }
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not name or not separator:
            raise ConfigurationError(f"--env {assignment!r} is not of the form NAME=text, like DB_URL={{dsn}}")
        made[name] = filled(text, address)
    return kept | QUIET | made, dropped


@contextlib.contextmanager
def closed() -> Iterator[dict[str, str]]:
    """Let nothing in this process's environment lead libpq elsewhere while the block runs; yield what there was."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("PG") and not name.startswith("PGONCE_"):
            del os.environ[name]
    try:
        yield before
    finally:
        os.environ.update(before)


def filled(text: str, address: Address) -> str:
    """Fill in the names in braces; others stay as they are."""
    fields = address.fields()
    return _PLACE.sub(lambda found: fields.get(found[1], found[0]), text)


def _names_a_database(name: str, value: str) -> bool:
    return name.startswith(("PG", "PGONCE_")) or name.endswith("DATABASE_URL") or _URL.match(value) is not None
