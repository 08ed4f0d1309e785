"""Write each payment as it stands in the file, over what was there."""

import csv

import psycopg

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    for row in csv.DictReader(file):
        connection.execute(
            "insert into ledger (payment_id, cents) values (%s, %s)"
            " on conflict (payment_id) do update set cents = excluded.cents",
            (row["payment_id"], int(row["cents"])),
        )
