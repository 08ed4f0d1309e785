"""Look whether a payment was applied; change the balance, then note it: each statement of asyncpg commits by itself."""

import asyncio
import csv

import asyncpg


async def settle() -> None:
    """Apply the payments of the file."""
    connection = await asyncpg.connect()
    with open("payments.csv") as file:
        payments = list(csv.DictReader(file))
    for row in payments:
        if await connection.fetchval("select 1 from applied where payment_id = $1", row["payment_id"]):
            continue
        await connection.execute(
            "update account set cents = cents + $1 where account = $2", int(row["cents"]), row["account"]
        )
        await connection.execute("insert into applied (payment_id) values ($1)", row["payment_id"])
    await connection.close()


asyncio.run(settle())
