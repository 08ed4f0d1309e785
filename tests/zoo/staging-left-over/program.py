"""Load the file into a staging table; then move it into the ledger and empty the stage."""

import csv
from pathlib import Path

import psycopg

source = Path("payments.csv")
if not source.exists():
    raise SystemExit(0)
with psycopg.connect("", autocommit=True) as connection, source.open() as file:
    with connection.cursor().copy("copy stage (payment_id, account, cents) from stdin") as copy:
        for row in csv.DictReader(file):
            copy.write_row((row["payment_id"], row["account"], int(row["cents"])))
    with connection.transaction():
        connection.execute("insert into ledger (payment_id, cents) select payment_id, cents from stage")
        connection.execute("delete from stage")
    source.rename("payments.done.csv")
