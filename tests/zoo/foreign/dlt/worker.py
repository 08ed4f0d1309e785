"""The money task with dlt: a file of payments into a table, as a pipeline with an incremental cursor."""

import os
import sys
from collections.abc import Iterator

import dlt

PAYMENTS = (("P-1", 500), ("P-2", 1250), ("P-3", 70))
variant = sys.argv[1]
# dlt cannot be told of a socket, and wants a password.
SERVER = {
    "host": os.environ["PGHOST"],
    "port": int(os.environ["PGPORT"]),
    "username": os.environ["PGUSER"],
    "database": os.environ["PGDATABASE"],
    "password": "unused",
}
keyed = {"write_disposition": "merge", "primary_key": "payment_id"}


@dlt.resource(name="ledger", **(keyed if variant == "merge" else {"write_disposition": "append"}))
def ledger(
    cursor: dlt.sources.incremental[str] = dlt.sources.incremental("payment_id"),  # noqa: B008 (dlt's own way)
) -> Iterator[dict[str, object]]:
    """Give the payments behind the cursor."""
    for payment_id, cents in PAYMENTS:
        yield {"payment_id": payment_id, "cents": cents}


if sys.argv[2] != "prepare":
    pipeline = dlt.pipeline(
        "settle", pipelines_dir="pipelines", destination=dlt.destinations.postgres(SERVER), dataset_name="books"
    )
    pipeline.run(ledger())
