"""Raise a flag that says that the job runs, book the payments by their key, lower the flag."""

import csv
import sys

import psycopg

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    if not connection.execute("update job set running = true where name = 'settle' and not running").rowcount:
        sys.exit("the job is running already")
    try:
        for row in csv.DictReader(file):
            connection.execute(
                "insert into ledger (payment_id, cents) values (%s, %s) on conflict do nothing",
                (row["payment_id"], int(row["cents"])),
            )
    finally:
        connection.execute("update job set running = false where name = 'settle'")
