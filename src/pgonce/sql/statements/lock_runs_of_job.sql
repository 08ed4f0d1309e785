-- Lock the runs of a job, so that none of them is acquired while it is decided whether they may be given up.
-- Lock: `for update` on each run's row.
-- Zero rows: the job has no run.
select r.run_id
from pgonce.run as r
where r.job = %(job)s::text
order by r.run_id
for update of r
