-- Lock a job, so that its definition is changed by one at a time.
-- Lock: `for no key update` on the job's row.
-- Zero rows: there is no such job.
select j.version
from pgonce.job as j
where j.job = %(job)s::text
for no key update of j
