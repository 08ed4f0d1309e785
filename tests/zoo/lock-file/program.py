"""Make a lock file, book the payments by their key in one transaction, remove the lock file."""

import csv
import sys
from pathlib import Path

import psycopg

lock = Path("settle.lock")
try:
    lock.touch(exist_ok=False)
except FileExistsError:
    sys.exit("settle.lock is there: another one is at work")
try:
    with psycopg.connect("") as connection, open("payments.csv") as file:
        for row in csv.DictReader(file):
            connection.execute(
                "insert into ledger (payment_id, cents) values (%s, %s) on conflict do nothing",
                (row["payment_id"], int(row["cents"])),
            )
        connection.commit()
        lock.unlink()
finally:
    lock.unlink(missing_ok=True)
