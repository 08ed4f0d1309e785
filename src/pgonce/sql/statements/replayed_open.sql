-- Count the replayed rows of a run whose event was failed or pending when they were read.
-- Lock: none.
-- Zero rows: never.
select coalesce(sum(s.failed_again + s.pending_again), 0)
from pgonce.start as s
where s.run_id = %(run_id)s::bigint and not s.replay
