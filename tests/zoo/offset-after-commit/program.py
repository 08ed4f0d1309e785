"""Commit each payment, then write into a file how many are done."""

import csv
from pathlib import Path

import psycopg

offset = Path("offset.txt")
done = int(offset.read_text()) if offset.exists() else 0
with psycopg.connect("") as connection, open("payments.csv") as file:
    for number, row in enumerate(csv.DictReader(file), start=1):
        if number > done:
            connection.execute(
                "insert into ledger (payment_id, cents) values (%s, %s)", (row["payment_id"], int(row["cents"]))
            )
            connection.commit()
            offset.write_text(str(number))
