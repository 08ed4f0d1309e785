"""Send all statements in one pipeline, which the server takes for one transaction up to the Sync."""

import csv

import psycopg

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file, connection.pipeline():
    for row in csv.DictReader(file):
        connection.execute(
            "update account set cents = cents + %s where account = %s", (int(row["cents"]), row["account"])
        )
