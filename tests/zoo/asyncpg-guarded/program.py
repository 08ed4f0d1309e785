"""Note each payment by its key and add it to its balance, in one transaction of asyncpg."""

import asyncio
import csv

import asyncpg


async def settle() -> None:
    """Apply the payments of the file."""
    connection = await asyncpg.connect()
    with open("payments.csv") as file:
        payments = list(csv.DictReader(file))
    for row in payments:
        async with connection.transaction():
            noted = await connection.fetchval(
                "insert into applied (payment_id) values ($1) on conflict do nothing returning 1", row["payment_id"]
            )
            if noted:
                await connection.execute(
                    "update account set cents = cents + $1 where account = $2", int(row["cents"]), row["account"]
                )
    await connection.close()


asyncio.run(settle())
