"""The money task with dlt: the file as Arrow tables, merged into a table by its key, loaded as CSV by COPY."""

import json
import os
import sys
import time
from collections.abc import Iterator

sys.path = [place for place in sys.path if not place.endswith("beside")]

import dlt  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.csv  # noqa: E402

SERVER = "postgresql://{PGUSER}:unused@localhost/{PGDATABASE}?host={PGHOST}&port={PGPORT}".format_map(os.environ)
MERGE = {"disposition": "merge", "strategy": os.environ["BESIDE_VARIANT"]}


@dlt.resource(name="ledger", write_disposition=MERGE, primary_key="payment_id")
def ledger() -> Iterator[pa.Table]:
    """Give the file in pieces."""
    for batch in pyarrow.csv.open_csv(sys.argv[1]):
        table = pa.Table.from_batches([batch])
        yield table.rename_columns(["cents" if name == "amount_cents" else name for name in table.column_names])


began_s = time.perf_counter()
pipeline = dlt.pipeline(
    "settle",
    pipelines_dir=os.environ["BESIDE_FOLDER"],
    destination=dlt.destinations.postgres(SERVER),
    dataset_name="books",
)
pipeline.run(ledger(), loader_file_format="csv")
print(json.dumps({"version": dlt.__version__, "enqueue_s": 0, "process_s": time.perf_counter() - began_s}))
