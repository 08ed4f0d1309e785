-- Read a job with the definition in force.
-- Lock: none.
-- Zero rows: there is no such job.
select j.version, d.spec, j.attempt_budget
from pgonce.job as j
join pgonce.definition as d on d.job = j.job and d.version = j.version
where j.job = %(job)s::text
