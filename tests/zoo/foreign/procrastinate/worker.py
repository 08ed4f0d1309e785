"""The money task with Procrastinate: one job a payment, each adds its amount to the ledger."""

import asyncio
import sys

import psycopg
from procrastinate import App, PsycopgConnector

PAYMENTS = (("P-1", 500), ("P-2", 1250), ("P-3", 70))
variant = sys.argv[1]
book = "insert into ledger (payment_id, cents) values (%s, %s)"
book += " on conflict do nothing" if variant.endswith("guarded") else ""
app = App(connector=PsycopgConnector())


@app.task(name="settle", retry=0 if "plain" in variant else 5)
def settle(payment_id: str, cents: int) -> None:
    """Add one payment to the ledger."""
    with psycopg.connect("") as connection:
        connection.execute(book, (payment_id, cents))


async def prepare() -> None:
    """Make the schema and hand in the jobs."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for payment_id, cents in PAYMENTS:
            await settle.defer_async(payment_id=payment_id, cents=cents)


async def retry_stalled_jobs() -> None:
    """Do what the page "Retry stalled jobs" has done every ten minutes; here after one second without a heartbeat."""
    while True:
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=1):
            await app.job_manager.retry_job(job)
        await asyncio.sleep(0.5)


async def work() -> None:
    """Run a worker until a signal comes."""
    async with app.open_async():
        if "plain" in variant:
            await app.run_worker_async()
            return
        retrying = asyncio.create_task(retry_stalled_jobs())
        await app.run_worker_async(
            update_heartbeat_interval=0.3, stalled_worker_timeout=60, fetch_job_polling_interval=0.5
        )
        retrying.cancel()


asyncio.run(prepare() if sys.argv[2] == "prepare" else work())
