"""A shop's account, for the tests of guarded transactions."""

from __future__ import annotations

import psycopg

TABLES = """
create table account (name text primary key, balance bigint not null check (balance >= 0));
insert into account (name, balance) values ('shop', 0), ('other', 0);
create procedure commits() language plpgsql as $$ begin commit; end $$;
create table seen (what text);
create function note_it() returns trigger language plpgsql as
    $$ begin insert into public.seen values (current_setting('synchronous_commit')); return null; end $$;
"""
ADD = "update account set balance = balance + 100 where name = 'shop'"


def balance(other: psycopg.Connection) -> int:
    """Return what is in the shop's account."""
    row = other.execute("select balance from account where name = 'shop'").fetchone()
    assert row is not None
    return int(row[0])
