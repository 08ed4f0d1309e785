"""Add a tenth as interest to every balance."""

import psycopg

with psycopg.connect("") as connection:
    connection.execute("update account set cents = cents + cents / 10")
