"""Note each run and how many payments it booked, beside the payments by their key."""

import csv

import psycopg

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    begun = connection.execute("insert into run_log (booked) values (null) returning run_id").fetchone()
    with connection.transaction():
        booked = 0
        for row in csv.DictReader(file):
            booked += connection.execute(
                "insert into ledger (payment_id, cents) values (%s, %s) on conflict do nothing",
                (row["payment_id"], int(row["cents"])),
            ).rowcount
    connection.execute("update run_log set booked = %s where run_id = %s", (booked, begun[0] if begun else None))
