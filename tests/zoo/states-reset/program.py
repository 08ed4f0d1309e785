"""Give back what an earlier run left as doing; take each new payment by marking it so; book it and mark it done."""

import psycopg

with psycopg.connect("", autocommit=True) as connection:
    connection.execute("update payment set state = 'new' where state = 'doing'")
    while True:
        taken = connection.execute(
            "update payment set state = 'doing' where payment_id ="
            " (select payment_id from payment where state = 'new' order by 1 limit 1 for update skip locked)"
            " returning payment_id, cents"
        ).fetchone()
        if taken is None:
            break
        with connection.transaction():
            connection.execute("insert into ledger (payment_id, cents) values (%s, %s)", taken)
            connection.execute("update payment set state = 'done' where payment_id = %s", (taken[0],))
