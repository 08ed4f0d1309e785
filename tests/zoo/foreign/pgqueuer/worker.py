"""The money task with PgQueuer: one job a payment, each adds its amount to the ledger."""

import asyncio
import json
import signal
import sys
from datetime import timedelta

import asyncpg
import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.executors import DatabaseRetryEntrypointExecutor
from pgqueuer.models import Job
from pgqueuer.queries import Queries

PAYMENTS = (("P-1", 500), ("P-2", 1250), ("P-3", 70))
variant = sys.argv[1]
book = "insert into ledger (payment_id, cents) values (%s, %s)"
book += " on conflict do nothing" if variant.endswith("guarded") else ""


def retried(parameters: object) -> DatabaseRetryEntrypointExecutor:
    """Try a job that raised again, as the page on reliability shows."""
    return DatabaseRetryEntrypointExecutor(parameters=parameters, max_attempts=5, initial_delay=timedelta(seconds=0.1))


async def prepare() -> None:
    """Make the schema and hand in the jobs."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect()))
    await queries.install()
    payloads = [json.dumps(payment).encode() for payment in PAYMENTS]
    await queries.enqueue(["settle"] * len(PAYMENTS), payloads, [0] * len(PAYMENTS))


async def work() -> None:
    """Run a worker until a signal comes."""
    pgq = PgQueuer.from_asyncpg_connection(await asyncpg.connect())
    options = {} if "plain" in variant else {"executor_factory": retried}

    @pgq.entrypoint("settle", **options)
    async def settle(job: Job) -> None:
        async with await psycopg.AsyncConnection.connect("") as connection:
            await connection.execute(book, json.loads(job.payload))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
    await pgq.run(dequeue_timeout=timedelta(seconds=0.5), heartbeat_timeout=timedelta(seconds=1), batch_size=1)


asyncio.run(prepare() if sys.argv[2] == "prepare" else work())
