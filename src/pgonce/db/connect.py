"""Which database is meant, and one connection to it.

URLs, password files, services and TLS are libpq's business: what the user wrote is passed through and never taken
apart by us.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgonce.errors import ConfigurationError

# libpq's own settings count as a configured database only if one of these says where it is.
LIBPQ_PLACES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE", "PGDATABASE")

# A server that does not answer a connection request at all (frozen, firewalled) must not hang a job for ever.
CONNECT_TIMEOUT_S = 10

# libpq takes 1 for 2.
CONNECT_TIMEOUT_S_MIN = 2

_DRIVER_SUFFIX = re.compile(r"^(postgres(?:ql)?)\+\w+://")


@dataclass(frozen=True, slots=True)
class Target:
    """A database to work in: libpq's connection string, and where it was named (for messages)."""

    conninfo: str
    named_by: str

    @property
    def label(self) -> str:
        """Describe the database for a message, without its password."""
        parts = conninfo_to_dict(self.conninfo)
        place = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "the default host"
        port = f":{parts['port']}" if parts.get("port") else ""
        user = f" as {parts['user']}" if parts.get("user") else ""
        return f"database {parts.get('dbname') or '(default)'} at {place}{port}{user}"


def named_target(dsn: str | None, environment: Mapping[str, str]) -> Target | None:
    """Find the database the user named: the option, PGONCE_DATABASE_URL, DATABASE_URL, then libpq's own variables.

    Returns None when nothing names one; then the embedded server is meant.
    Raises ConfigurationError when what was named cannot be understood by libpq.
    """
    for value, named_by in (
        (dsn, "--dsn"),
        (environment.get("PGONCE_DATABASE_URL"), "PGONCE_DATABASE_URL"),
        (environment.get("DATABASE_URL"), "DATABASE_URL"),
    ):
        if value:
            conninfo = _DRIVER_SUFFIX.sub(r"\1://", value)
            try:
                conninfo_to_dict(conninfo)
            except psycopg.ProgrammingError as error:
                raise ConfigurationError(
                    f"the database named by {named_by} cannot be understood: {str(error).strip()}. "
                    "Write it as postgresql://user@host/database or as host=... dbname=..."
                ) from error
            return Target(conninfo=conninfo, named_by=named_by)
    if any(environment.get(name) for name in LIBPQ_PLACES):
        return Target(conninfo="", named_by="libpq's environment")
    return None


def without_password(conninfo: str) -> tuple[str, str | None]:
    """Part a connection string from its password, for programs that get the one by arguments, the other by environment.

    Raises ConfigurationError for a key's password, which has no place in the environment.
    """
    if not conninfo:
        return "", None
    parts = conninfo_to_dict(conninfo)
    password = parts.pop("password", None)
    if parts.get("sslpassword"):
        raise ConfigurationError(
            "a key's password (sslpassword) cannot be handed to another program safely: put the connection into a "
            "service file and name it with service=NAME"
        )
    return make_conninfo("", **parts), None if password is None else str(password)


def connect(target: Target, *, application: str, within_s: float = CONNECT_TIMEOUT_S) -> psycopg.Connection:
    """Open one connection in autocommit mode, with nothing prepared (a pooler may serve it).

    ``within_s`` bounds, in whole seconds, how long all hosts that are named may take to answer, one after the other.

    Raises psycopg.OperationalError; what that means is decided by the phase it happens in.
    """
    given = conninfo_to_dict(target.conninfo)
    extra: dict[str, str | int] = {"client_encoding": "utf8"}
    each_s = ceil(min(within_s, 1e6) / _hosts(given))
    longest_s = _whole_seconds(given.get("connect_timeout"))
    extra["connect_timeout"] = max(CONNECT_TIMEOUT_S_MIN, min(longest_s, each_s))
    if "application_name" not in given:
        extra["application_name"] = application
    return psycopg.connect(make_conninfo(target.conninfo, **extra), autocommit=True, prepare_threshold=None)


def has_hung_up(connection: psycopg.Connection) -> bool:
    """Say whether the server has closed an idle connection; its last words may still have to be read first.

    Safe to re-run: yes.
    """
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    try:
        while poller.poll(0):
            connection.pgconn.consume_input()
            connection.pgconn.is_busy()
    except psycopg.Error:
        return True
    return connection.broken


def _whole_seconds(text: object) -> int:
    """Read what the user allows for a connection; nothing, zero and less say nothing, and what is no number is libpq's
    to complain about.
    """
    written = str(text or os.environ.get("PGCONNECT_TIMEOUT") or "")
    return int(written) if written.isascii() and written.isdigit() and int(written) > 0 else CONNECT_TIMEOUT_S


def _hosts(given: Mapping[str, object]) -> int:
    """Count the hosts that are tried one after the other, as far as they are named: libpq bounds each by itself."""
    named = str(given.get("hostaddr") or given.get("host") or os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST"))
    return named.count(",") + 1
