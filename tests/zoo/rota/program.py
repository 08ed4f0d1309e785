"""Hand every desk on to whoever follows."""

import psycopg

with psycopg.connect("") as connection:
    connection.execute("update duty set person = person.follower from person where person.person = duty.person")
