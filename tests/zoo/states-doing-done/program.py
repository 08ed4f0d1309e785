"""Take each new payment by marking it as doing; book it and mark it as done in one transaction."""

import psycopg

with psycopg.connect("", autocommit=True) as connection:
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
