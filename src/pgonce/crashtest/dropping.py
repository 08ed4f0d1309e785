"""Drop databases of ours, whatever still holds on to them, and tell those of ours from others by their names."""

from __future__ import annotations

import secrets

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

# On a server that is not ours every name begins so, and goes on with a token of the test that made the database.
PREFIX = "pgonce_crashtest_"
TOKEN_BYTES = 6

_OURS = "^pgonce_crashtest_[0-9a-f]{12}_([a-z]+|[0-9]+(__pristine|__clean)?)$"

# Of a test that lives somewhere a session is there that is called after its token; every role may see that much. Whose
# the database is says whether this role may drop it.
_LEFT = """
select d.datname
from pg_database as d
where d.datname ~ %(ours)s and pg_has_role(d.datdba, 'usage')
  and not exists (select from pg_stat_activity as a
                  where a.application_name = 'pgonce crashtest ' || substr(d.datname, %(begin)s, %(length)s))
order by d.datname
"""


def new_token() -> str:
    """Return a token that no other test has."""
    return secrets.token_hex(TOKEN_BYTES)


def token_of(name: str) -> str:
    """Return the token in the name of a database of ours."""
    return name[len(PREFIX) : len(PREFIX) + 2 * TOKEN_BYTES]


def marker(token: str) -> str:
    """Return what the session is called that says that a test lives."""
    return f"pgonce crashtest {token}"


def names(connection: psycopg.Connection, token: str) -> list[str]:
    """Return the databases of a test, the one that it works from last."""
    rows = connection.execute(
        "select datname from pg_database where starts_with(datname, %s) order by datname", (f"{PREFIX}{token}_",)
    )
    return [str(row[0]) for row in rows]


def is_alive(connection: psycopg.Connection, token: str) -> bool:
    """Say whether a session of a test, other than this one, is still at work, such as at making a database."""
    found = connection.execute(
        "select from pg_stat_activity where application_name = %s and pid <> pg_backend_pid()", (marker(token),)
    )
    return found.fetchone() is not None


def left_behind(connection: psycopg.Connection) -> list[str]:
    """Return the databases of tests that live no more, as far as this role may drop them."""
    told = {"ours": _OURS, "begin": len(PREFIX) + 1, "length": 2 * TOKEN_BYTES}
    return [str(row[0]) for row in connection.execute(_LEFT, told)]


def drop(connection: psycopg.Connection, name: str, *, dsn: str) -> None:
    """Drop a database if it is there, with its sessions and prepared transactions; ``dsn`` is that of its server.

    A role that may not end every session there waits for those to end by themselves. Safe to re-run: yes.
    """
    prepared = connection.execute("select gid from pg_prepared_xacts where database = %s", (name,)).fetchall()
    if prepared:
        with psycopg.connect(make_conninfo(dsn, dbname=name), autocommit=True) as inside:
            for (gid,) in prepared:
                inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
    statement = sql.SQL("drop database if exists {}").format(sql.Identifier(name))
    try:
        connection.execute(statement + sql.SQL(" with (force)"))
    except psycopg.errors.InsufficientPrivilege:
        connection.execute(statement)
