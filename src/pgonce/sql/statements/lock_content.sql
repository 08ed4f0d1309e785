-- Let one start at a time decide whether a content is new: two that take one content under two names must not both pass.
-- Lock: a transaction-scoped advisory lock on the digest. A hint for order; the run's key is what holds.
-- Zero rows: never.
select pg_advisory_xact_lock(hashtextextended(%(digest)s::text, 706365))
