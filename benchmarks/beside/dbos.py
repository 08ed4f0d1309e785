"""The money task with DBOS: a workflow an event, its id the event's; the step's transaction books the payment together
with the record of the step. The workflows are called one after the other, or put into a queue that works at several."""

import csv
import importlib.metadata
import json
import os
import sys
import time

AT_A_TIME = 20

sys.path = [place for place in sys.path if not place.endswith("beside")]

import sqlalchemy  # noqa: E402
from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource  # noqa: E402

URL = "postgresql+psycopg://{PGUSER}@/{PGDATABASE}?host={PGHOST}&port={PGPORT}".format_map(os.environ)
DBOS(config={"name": "settle", "system_database_url": URL, "application_version": "1", "log_level": "ERROR"})
source = SQLAlchemyDatasource.create(URL)


@source.transaction()
def book(payment_id: str, cents: int) -> None:
    """Book one payment in the transaction that records the step."""
    insert = sqlalchemy.text("insert into ledger (payment_id, cents) values (:id, :cents)")
    source.sql_session().execute(insert, {"id": payment_id, "cents": cents})


@DBOS.workflow()
def settle(payment_id: str, cents: int) -> None:
    """Settle one payment."""
    book(payment_id, cents)


with open(sys.argv[1], encoding="utf-8") as file:
    rows = [(row["payment_id"], int(row["amount_cents"])) for row in csv.DictReader(file)]
DBOS.launch()
began_s = handed_in_s = time.perf_counter()
if os.environ["BESIDE_VARIANT"] == "queue":
    queue = DBOS.register_queue("payments", worker_concurrency=AT_A_TIME, polling_interval_sec=0.1)
    handles = []
    for name, amount in rows:
        with SetWorkflowID(name):
            handles.append(queue.enqueue(settle, name, amount))
    handed_in_s = time.perf_counter()
    for handle in handles:
        handle.get_result()
else:
    for name, amount in rows:
        with SetWorkflowID(name):
            settle(name, amount)
done_s = time.perf_counter()
DBOS.destroy()
version = importlib.metadata.version("dbos")
print(json.dumps({"version": version, "enqueue_s": handed_in_s - began_s, "process_s": done_s - handed_in_s}))
