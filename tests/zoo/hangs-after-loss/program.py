"""Read in one thread, book by key in another; the main thread waits until everything is booked."""

import csv
import queue
import sys
import threading

import psycopg

work: queue.Queue[dict[str, str]] = queue.Queue()


def book() -> None:
    """Book what is in the queue, for ever."""
    with psycopg.connect("", autocommit=True) as connection:
        while True:
            row = work.get()
            connection.execute(
                "insert into ledger (payment_id, cents) values (%s, %s) on conflict do nothing",
                (row["payment_id"], int(row["cents"])),
            )
            work.task_done()


with open("payments.csv") as file:
    for payment in csv.DictReader(file):
        work.put(payment)
threading.Thread(target=book, daemon=True).start()
work.join()
sys.exit(0)
