"""Send all statements in one pipeline inside one transaction; each changes a balance only if it wrote the note."""

import csv

import psycopg

APPLY = """with noted as (insert into applied (payment_id) values (%s) on conflict do nothing returning payment_id)
update account set cents = cents + %s where account = %s and exists (select from noted)"""

with (
    open("payments.csv") as file,
    psycopg.connect("", autocommit=True) as connection,
    connection.pipeline(),
    connection.transaction(),
):
    for row in csv.DictReader(file):
        connection.execute(APPLY, (row["payment_id"], int(row["cents"]), row["account"]))
