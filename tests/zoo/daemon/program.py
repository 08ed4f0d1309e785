"""Leave a process behind that does the work, as daemons do: a session of its own, and the command ends at once."""

import csv
import os
import sys
import time

import psycopg


def settle(ready: int) -> None:
    """Connect, tell that it works, book the payments by their key."""
    with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
        os.write(ready, b"1")
        os.close(ready)
        time.sleep(0.05)
        for row in csv.DictReader(file):
            connection.execute(
                "insert into ledger (payment_id, cents) values (%s, %s) on conflict do nothing",
                (row["payment_id"], int(row["cents"])),
            )


started, ready = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        settle(ready)
    os._exit(0)
os.close(ready)
os.wait()
sys.exit(0 if os.read(started, 1) else 1)
