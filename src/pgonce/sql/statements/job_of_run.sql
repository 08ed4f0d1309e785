-- Name the job of a run.
-- Lock: none.
-- Zero rows: no such run.
select r.job
from pgonce.run as r
where r.run_id = %(run_id)s::bigint
