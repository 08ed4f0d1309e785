"""Keep in a local SQLite file which payments were applied; the server only gets the amounts."""

import csv
import sqlite3

import psycopg

memory = sqlite3.connect("memory.db", isolation_level=None)
memory.execute("create table if not exists applied (payment_id text primary key)")
with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    for row in csv.DictReader(file):
        if memory.execute("select 1 from applied where payment_id = ?", (row["payment_id"],)).fetchone():
            continue
        connection.execute(
            "update account set cents = cents + %s where account = %s", (int(row["cents"]), row["account"])
        )
        memory.execute("insert into applied (payment_id) values (?)", (row["payment_id"],))
