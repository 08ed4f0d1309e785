"""The money task with PgQueuer: a job an event, handed in as one batch, done by one worker that takes 300 at a time."""

import asyncio
import csv
import importlib.metadata
import json
import sys
import time

import asyncpg

# This file has the name of the library: its folder is no place to import from.
sys.path = [place for place in sys.path if not place.endswith("beside")]

from pgqueuer import PgQueuer  # noqa: E402
from pgqueuer.db import AsyncpgPoolDriver  # noqa: E402
from pgqueuer.models import Job  # noqa: E402
from pgqueuer.queries import Queries  # noqa: E402
from pgqueuer.types import QueueExecutionMode  # noqa: E402

AT_A_TIME = 300
CONNECTIONS = 20


async def main() -> None:
    """Hand the jobs in, then work until the queue is empty."""
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = [[row["payment_id"], int(row["amount_cents"])] for row in csv.DictReader(file)]
    async with asyncpg.create_pool(min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        began_s = time.perf_counter()
        await queries.enqueue(["settle"] * len(jobs), [json.dumps(job).encode() for job in jobs], [0] * len(jobs))
        handed_in_s = time.perf_counter()
        pgq = PgQueuer(driver)

        @pgq.entrypoint("settle")
        async def settle(job: Job) -> None:
            payment_id, cents = json.loads(job.payload)
            await pool.execute("insert into ledger (payment_id, cents) values ($1, $2)", payment_id, cents)

        await pgq.run(batch_size=AT_A_TIME, mode=QueueExecutionMode.drain)
        done_s = time.perf_counter()
    version = importlib.metadata.version("pgqueuer")
    print(json.dumps({"version": version, "enqueue_s": handed_in_s - began_s, "process_s": done_s - handed_in_s}))


asyncio.run(main())
