"""Load the file into a temporary table, and from there what is new, in one transaction."""

import csv

import psycopg

with psycopg.connect("") as connection, open("payments.csv") as file:
    connection.execute("create temporary table stage (payment_id text, cents bigint) on commit drop")
    with connection.cursor().copy("copy stage (payment_id, cents) from stdin") as copy:
        for row in csv.DictReader(file):
            copy.write_row((row["payment_id"], int(row["cents"])))
    connection.execute(
        "insert into ledger (payment_id, cents) select payment_id, cents from stage on conflict do nothing"
    )
