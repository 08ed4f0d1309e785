"""The money task with Procrastinate: a job an event, handed in as a batch, done by one worker with 20 at a time."""

import asyncio
import csv
import json
import sys
import time

# This file has the name of the library: its folder is no place to import from.
sys.path = [place for place in sys.path if not place.endswith("beside")]

import procrastinate  # noqa: E402
from procrastinate import App, PsycopgConnector  # noqa: E402
from psycopg_pool import AsyncConnectionPool  # noqa: E402

AT_A_TIME = 20
app = App(connector=PsycopgConnector(min_size=2, max_size=AT_A_TIME))
books: AsyncConnectionPool


@app.task(name="settle")
async def settle(payment_id: str, cents: int) -> None:
    """Book one payment."""
    async with books.connection() as connection:
        await connection.execute("insert into ledger (payment_id, cents) values (%s, %s)", (payment_id, cents))


async def main() -> None:
    """Hand the jobs in, then work until the queue is empty."""
    global books
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = [{"payment_id": row["payment_id"], "cents": int(row["amount_cents"])} for row in csv.DictReader(file)]
    async with app.open_async(), AsyncConnectionPool("", min_size=AT_A_TIME) as books:
        await app.schema_manager.apply_schema_async()
        began_s = time.perf_counter()
        await settle.batch_defer_async(*jobs)
        handed_in_s = time.perf_counter()
        await app.run_worker_async(concurrency=AT_A_TIME, wait=False, install_signal_handlers=False)
        done_s = time.perf_counter()
    print(
        json.dumps(
            {
                "version": procrastinate.__version__,
                "enqueue_s": handed_in_s - began_s,
                "process_s": done_s - handed_in_s,
            }
        )
    )


asyncio.run(main())
