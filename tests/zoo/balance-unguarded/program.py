"""Add every payment to its balance, all in one transaction."""

import csv

import psycopg

with psycopg.connect("") as connection, open("payments.csv") as file:
    for row in csv.DictReader(file):
        connection.execute(
            "update account set cents = cents + %s where account = %s", (int(row["cents"]), row["account"])
        )
