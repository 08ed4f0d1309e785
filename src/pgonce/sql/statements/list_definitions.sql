-- List every version of a job's definition that was ever in force, the first one first.
-- Lock: none.
-- Zero rows: there is no such job.
select d.version, d.spec, d.who, d.why, d.created_at
from pgonce.definition as d
where d.job = %(job)s::text
order by d.version
