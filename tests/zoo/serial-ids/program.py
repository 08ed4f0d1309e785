"""Book each payment under a number of the database's, with a line that refers to it."""

import csv

import psycopg

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    for row in csv.DictReader(file):
        with connection.transaction():
            made = connection.execute(
                "insert into booking (payment_id) values (%s) on conflict do nothing returning booking_id",
                (row["payment_id"],),
            ).fetchone()
            if made is not None:
                connection.execute("insert into line (booking_id, cents) values (%s, %s)", (made[0], int(row["cents"])))
