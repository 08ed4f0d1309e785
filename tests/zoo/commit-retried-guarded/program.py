"""Book each payment by its key; when the connection is lost, connect again and do the transaction again."""

import csv
import sys
import time
from pathlib import Path

import psycopg

TRIES = 100
done = Path("done.txt")


def book(connection: psycopg.Connection, payment_id: str, cents: int) -> psycopg.Connection:
    """Book one payment, trying again on every operational error; return the connection that works."""
    for _ in range(TRIES):
        try:
            if connection.closed:
                connection = psycopg.connect("", autocommit=True)
            with connection.transaction():
                connection.execute(
                    "insert into ledger (payment_id, cents) values (%s, %s) on conflict do nothing",
                    (payment_id, cents),
                )
            return connection
        except psycopg.OperationalError as error:
            print(f"trying again: {error}")
            time.sleep(0.02)
    sys.exit(75)


if done.exists():
    sys.exit(0)
session = psycopg.connect("", autocommit=True)
with open("payments.csv") as file:
    for row in csv.DictReader(file):
        session = book(session, row["payment_id"], int(row["cents"]))
done.write_text("done\n")
session.close()
