"""Look whether a payment was applied; if not, note it and change the balance, each by itself."""

import csv

import psycopg

with psycopg.connect("", autocommit=True) as connection, open("payments.csv") as file:
    for row in csv.DictReader(file):
        if connection.execute("select from applied where payment_id = %s", (row["payment_id"],)).rowcount:
            continue
        connection.execute("insert into applied (payment_id) values (%s)", (row["payment_id"],))
        connection.execute(
            "update account set cents = cents + %s where account = %s", (int(row["cents"]), row["account"])
        )
