"""Add each payment to its account, which is made if it is not there."""

import csv

import psycopg

with psycopg.connect("") as connection, open("payments.csv") as file:
    for row in csv.DictReader(file):
        connection.execute(
            "insert into account (account, cents) values (%s, %s)"
            " on conflict (account) do update set cents = account.cents + excluded.cents",
            (row["account"], int(row["cents"])),
        )
    connection.commit()
