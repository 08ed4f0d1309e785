-- Lock a run, so that one start at a time can be begun or ended.
-- Lock: `for no key update` on the run's row.
-- Zero rows: no such run.
select r.job, r.version, r.kind, r.source, r.epoch, r.finished_at, r.outcome, r.touched, r.input_bytes
from pgonce.run as r
where r.run_id = %(run_id)s::bigint
for no key update of r
