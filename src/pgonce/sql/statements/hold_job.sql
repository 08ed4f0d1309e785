-- Hold a job's definition in force until a start of it is begun: who changes it waits, and sees the start then.
-- Lock: `for share` on the job's row.
-- Zero rows: there is no such job.
select j.version
from pgonce.job as j
where j.job = %(job)s::text
for share of j
