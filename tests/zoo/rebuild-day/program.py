"""Throw the totals of each day away and make them anew from the payments."""

import psycopg

with psycopg.connect("", autocommit=True) as connection:
    for (day,) in connection.execute("select distinct day from payment order by day").fetchall():
        with connection.transaction():
            connection.execute("delete from daily where day = %s", (day,))
            connection.execute(
                "insert into daily (day, payments, cents)"
                " select day, count(*), sum(cents) from payment where day = %s group by day",
                (day,),
            )
