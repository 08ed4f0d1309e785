"""The SQL statements of pgonce, one a file, with the schema's name put in.

The files are valid SQL for the default schema ``pgonce``; for another name the qualifier is replaced as they are read.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

DEFAULT_SCHEMA = "pgonce"

_QUALIFIER = re.compile(r"\bpgonce\.")


def quote_identifier(name: str) -> str:
    """Quote a name so that SQL takes it literally."""
    return '"' + name.replace('"', '""') + '"'


def qualify(text: str, schema: str) -> str:
    """Put the name of the schema into SQL that was written for the default one."""
    return _QUALIFIER.sub(lambda _: quote_identifier(schema) + ".", text)


@lru_cache(maxsize=512)
def statement(name: str, schema: str) -> bytes:
    """Return the SQL of ``sql/statements/<name>.sql``, without its header comment, for this schema."""
    text = files("pgonce.sql").joinpath("statements", f"{name}.sql").read_text(encoding="utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    # The driver reads a % in a statement with parameters; one in the schema's name is doubled for it.
    name = schema.replace("%", "%%") if "%(" in body else schema
    return qualify(body, name).strip().encode()
