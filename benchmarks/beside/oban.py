"""The money task with Oban: a job an event, handed in by batches, done by one node with 100 at a time."""

import asyncio
import csv
import importlib.metadata
import json
import os
import sys
import time

sys.path = [place for place in sys.path if not place.endswith("beside")]

from oban import Oban, worker  # noqa: E402
from oban.schema import install  # noqa: E402
from psycopg_pool import AsyncConnectionPool  # noqa: E402

AT_A_TIME = 100
CONNECTIONS = 20
BATCH = 1_000
DSN = "postgresql://{PGUSER}@/{PGDATABASE}?host={PGHOST}&port={PGPORT}".format_map(os.environ)
books: AsyncConnectionPool
left = 0
done = asyncio.Event()


@worker(queue="default")
class Settle:
    """Books one payment."""

    async def process(self, job: object) -> None:
        """Book the payment of this job."""
        global left
        async with books.connection() as connection:
            await connection.execute(
                "insert into ledger (payment_id, cents) values (%s, %s)", (job.args["payment_id"], job.args["cents"])
            )
        left -= 1
        if not left:
            done.set()


async def main() -> None:
    """Hand the jobs in, then work until all are done."""
    global books, left
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = [{"payment_id": row["payment_id"], "cents": int(row["amount_cents"])} for row in csv.DictReader(file)]
    left = len(rows)
    pool = await Oban.create_pool(dsn=DSN)
    await install(pool)
    began_s = time.perf_counter()
    async with Oban(pool=pool) as oban:
        for start in range(0, len(rows), BATCH):
            await oban.enqueue_many(*(Settle.new(row) for row in rows[start : start + BATCH]))
    handed_in_s = time.perf_counter()
    async with (
        AsyncConnectionPool("", min_size=CONNECTIONS) as books,
        Oban(pool=pool, queues={"default": AT_A_TIME}),
    ):
        await done.wait()
        done_s = time.perf_counter()
    await pool.close()
    version = importlib.metadata.version("oban")
    print(json.dumps({"version": version, "enqueue_s": handed_in_s - began_s, "process_s": done_s - handed_in_s}))


asyncio.run(main())
