-- Read the database's clock.
-- Lock: none.
-- Zero rows: never.
select clock_timestamp()
