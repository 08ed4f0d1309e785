"""The money task with Oban: one job a payment, each adds its amount to the ledger."""

import asyncio
import os
import signal
import sys

import psycopg
from oban import Oban, worker
from oban.schema import install

PAYMENTS = (("P-1", 500), ("P-2", 1250), ("P-3", 70))
variant = sys.argv[1]
book = "insert into ledger (payment_id, cents) values (%s, %s)"
book += " on conflict do nothing" if variant.endswith("guarded") else ""
DSN = "postgresql://{PGUSER}@/{PGDATABASE}?host={PGHOST}&port={PGPORT}".format_map(os.environ)


@worker(queue="default")
class Settle:
    """Adds one payment to the ledger."""

    async def process(self, job: object) -> None:
        """Book the payment of this job."""
        async with await psycopg.AsyncConnection.connect("") as connection:
            await connection.execute(book, (job.args["payment_id"], job.args["cents"]))

    def backoff(self, job: object) -> int:
        """Try again after a second instead of the default's quarter of a minute."""
        return 1


async def prepare() -> None:
    """Make the schema and hand in the jobs."""
    pool = await Oban.create_pool(dsn=DSN)
    await install(pool)
    async with Oban(pool=pool) as oban:
        await oban.enqueue_many(*(Settle.new({"payment_id": name, "cents": cents}) for name, cents in PAYMENTS))
    await pool.close()


async def work() -> None:
    """Run a worker until a signal comes."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    pool = await Oban.create_pool(dsn=DSN)
    lifeline = {"interval": 0.5, "rescue_after": 1.0}
    async with Oban(pool=pool, queues={"default": 1}, lifeline=lifeline, stager={"interval": 0.5}):
        await stopping.wait()
    await pool.close()


asyncio.run(prepare() if sys.argv[2] == "prepare" else work())
