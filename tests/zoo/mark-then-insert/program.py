"""Mark each new payment as done, then book it: two transactions, the mark first so that nothing is booked twice."""

import psycopg

with psycopg.connect("", autocommit=True) as connection:
    new = connection.execute("select payment_id, cents from payment where state = 'new' order by payment_id").fetchall()
    for payment_id, cents in new:
        with connection.transaction():
            connection.execute("update payment set state = 'done' where payment_id = %s", (payment_id,))
        with connection.transaction():
            connection.execute("insert into ledger (payment_id, cents) values (%s, %s)", (payment_id, cents))
