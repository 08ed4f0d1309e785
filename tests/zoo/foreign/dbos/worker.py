"""The money task with DBOS: one workflow a payment, its id the payment's; the only step adds its amount."""

import os
import sys

import psycopg
import sqlalchemy
from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

PAYMENTS = (("P-1", 500), ("P-2", 1250), ("P-3", 70))
variant = sys.argv[1]
URL = "postgresql+psycopg://{PGUSER}@/{PGDATABASE}?host={PGHOST}&port={PGPORT}".format_map(os.environ)
DBOS(config={"name": "settle", "system_database_url": URL, "application_version": "1"})
book = "insert into ledger (payment_id, cents) values (:id, :cents)"
source = SQLAlchemyDatasource.create(URL) if variant == "datasource" else None


@DBOS.step(retries_allowed=variant == "step-retried", interval_seconds=0.1, max_attempts=5)
def book_in_step(payment_id: str, cents: int) -> None:
    """Book one payment in a transaction of one's own."""
    with psycopg.connect("") as connection:
        connection.execute("insert into ledger (payment_id, cents) values (%s, %s)", (payment_id, cents))


if source is not None:

    @source.transaction()
    def book_in_transaction(payment_id: str, cents: int) -> None:
        """Book one payment in the transaction that records the step."""
        source.sql_session().execute(sqlalchemy.text(book), {"id": payment_id, "cents": cents})


@DBOS.workflow()
def settle(payment_id: str, cents: int) -> None:
    """Settle one payment."""
    (book_in_transaction if source is not None else book_in_step)(payment_id, cents)


DBOS.launch()
failed = 0
if sys.argv[2] != "prepare":
    for name, amount in PAYMENTS:
        with SetWorkflowID(name):
            handle = DBOS.start_workflow(settle, name, amount)
        try:
            handle.get_result()
        except Exception as error:
            failed += 1
            print(f"{name}: {error!r}", file=sys.stderr)
DBOS.destroy()
sys.exit(1 if failed else 0)
