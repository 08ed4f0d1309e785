"""Book each new payment, then mark it as done: two transactions."""

import psycopg

with psycopg.connect("", autocommit=True) as connection:
    new = connection.execute("select payment_id, cents from payment where state = 'new' order by payment_id").fetchall()
    for payment_id, cents in new:
        connection.execute("insert into ledger (payment_id, cents) values (%s, %s)", (payment_id, cents))
        connection.execute("update payment set state = 'done' where payment_id = %s", (payment_id,))
