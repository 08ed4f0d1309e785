-- List jobs, or one, with the definition in force, who put it there and why.
-- Lock: none.
-- Zero rows: there is no such job, or none at all.
select j.job, j.version, j.attempt_budget, j.created_at, d.spec, d.who, d.why, d.created_at
from pgonce.job as j
join pgonce.definition as d on d.job = j.job and d.version = j.version
where %(job)s::text is null or j.job = %(job)s::text
order by j.job
