"""Load the file with one COPY; the key of the table takes care that nothing is there twice."""

import csv

import psycopg

with (
    psycopg.connect("", autocommit=True) as connection,
    open("payments.csv") as file,
    connection.cursor().copy("copy ledger (payment_id, cents) from stdin") as copy,
):
    for row in csv.DictReader(file):
        copy.write_row((row["payment_id"], int(row["cents"])))
