-- Let one session at a time bring the schema up to date.
-- Lock: a transaction-scoped advisory lock on the schema's name; it also holds before the schema exists.
-- Zero rows: never.
select pg_advisory_xact_lock(hashtextextended(%(schema)s::text, 706366))
