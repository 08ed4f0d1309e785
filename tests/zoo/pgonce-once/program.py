"""Note each payment by its key and add it to its balance, in pgonce's guarded transaction, which tries again itself."""

import csv

import pgonce


def apply(connection: pgonce.GuardedConnection, row: dict[str, str]) -> None:
    """Apply one payment that was not applied before."""
    noted = connection.execute(
        "insert into applied (payment_id) values (%s) on conflict do nothing", (row["payment_id"],)
    )
    if noted.rowcount:
        connection.execute(
            "update account set cents = cents + %s where account = %s", (int(row["cents"]), row["account"])
        )


with pgonce.connect() as once, open("payments.csv") as file:
    for payment in csv.DictReader(file):
        once.do(lambda connection, row=payment: apply(connection, row))
