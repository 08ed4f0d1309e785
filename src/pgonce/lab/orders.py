"""What is in a new lab: made-up orders; and who and what one talks to there."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata

import psycopg

from pgonce.errors import ConfigurationError, Retryable
from pgonce.lab.home import SCHEMA, Lab
from pgonce.server.place import account_of

ORDERS = 1000
"""Enough for a query plan to be worth a look, and few enough to be made at once."""

_FILL = """
create schema if not exists wiki_lab;
drop table if exists wiki_lab.orders;
create table wiki_lab.orders (
    order_id integer primary key,
    customer text not null,
    ordered_on date not null,
    amount_cents bigint not null check (amount_cents >= 0),
    status text not null check (status in ('open', 'paid', 'cancelled'))
);
insert into wiki_lab.orders (order_id, customer, ordered_on, amount_cents, status)
select
    n,
    'customer-' || lpad((n * 7919 %% 97)::text, 2, '0'),
    date '2026-01-01' + n * 31 %% 365,
    500 + n::bigint * 7907 %% 20000,
    case n %% 10 when 0 then 'cancelled' when 1 then 'open' else 'paid' end
from generate_series(1, %s) as n;
"""


def seed(lab: Lab) -> int:
    """Fill the lab's schema with made-up orders, the same in every lab; return how many.

    Raises Retryable while another session holds them, ConfigurationError if other objects depend on them.
    Safe to re-run: yes.
    """
    try:
        with psycopg.connect(lab.dsn("lab-seed")) as connection:
            for statement in _FILL.split(";\n"):
                connection.execute(statement, (ORDERS,) if "%s" in statement else None)
    except psycopg.errors.LockNotAvailable as error:
        raise Retryable(
            "wiki_lab.orders is locked by another session. End its transaction (commit or rollback), then run again."
        ) from error
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ConfigurationError(
            f"wiki_lab.orders cannot be made anew: {error.diag.message_detail}. Drop that first, then run again."
        ) from error
    return ORDERS


def whoami(lab: Lab) -> dict[str, str]:
    """Return who one is in the lab and where: what the server says of the session. Safe to re-run: it only looks."""
    with psycopg.connect(lab.dsn("lab-whoami")) as connection:
        row = connection.execute(
            "select current_user, current_database(), current_setting('unix_socket_directories'),"
            " current_setting('port'), current_setting('listen_addresses'), current_setting('data_directory')"
        ).fetchone()
    assert row is not None
    names = ("user", "database", "socket_folder", "port", "tcp_addresses", "data_folder")
    found = dict(zip(names, map(str, row), strict=True))
    return {
        **found,
        "tcp_addresses": found["tcp_addresses"] or "none",
        "schema": SCHEMA,
        "server_process": str(lab.server.postmaster_pid),
        "server_account": account_of(lab.server.pgdata.stat().st_uid).name,
        "your_account": account_of(os.geteuid()).name,
    }


def versions(lab: Lab) -> dict[str, str]:
    """Return the versions of everything that takes part. Safe to re-run: it only looks."""
    with psycopg.connect(lab.dsn("lab-versions")) as connection:
        server, number = connection.execute(
            "select current_setting('server_version'), current_setting('server_version_num')"
        ).fetchone() or ("", "")
        libpq = psycopg.pq.version()
    psql = subprocess.run(
        [lab.programs.program("psql"), "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    return {
        "postgresql": f"{server} ({number})",
        "psql": psql.stdout.strip().rsplit(" ", 1)[-1],
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
        "libpq": f"{libpq // 10000}.{libpq % 10000}",
        "pgonce": metadata.version("pgonce"),
    }
