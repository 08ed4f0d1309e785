"""Book the payments, under a session lock so that only one such program runs at a time: nothing twice."""

import csv
import sys

import psycopg

LOCK = 20_261_130

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    if connection.execute("select pg_try_advisory_lock(%s::bigint)", (LOCK,)).fetchone() != (True,):
        sys.exit("another one is at work")
    for row in csv.DictReader(file):
        connection.execute(
            "insert into ledger (payment_id, cents) values (%s, %s)", (row["payment_id"], int(row["cents"]))
        )
    connection.execute("select pg_advisory_unlock(%s::bigint)", (LOCK,))
