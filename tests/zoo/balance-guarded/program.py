"""Note each payment by its key and add it to its balance in one transaction; what was noted before is left alone."""

import csv

import psycopg

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    for row in csv.DictReader(file):
        with connection.transaction():
            noted = connection.execute(
                "insert into applied (payment_id) values (%s) on conflict do nothing", (row["payment_id"],)
            )
            if noted.rowcount:
                connection.execute(
                    "update account set cents = cents + %s where account = %s", (int(row["cents"]), row["account"])
                )
