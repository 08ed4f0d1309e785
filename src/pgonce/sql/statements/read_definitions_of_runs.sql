-- Read the definitions that some runs read their inputs by.
-- Lock: none. A stored definition never changes; a changed one is a new version.
-- Zero rows: none of the runs exists.
select r.run_id, d.spec
from pgonce.run as r
join pgonce.definition as d on d.job = r.job and d.version = r.version
where r.run_id = any(%(run_ids)s::bigint[])
