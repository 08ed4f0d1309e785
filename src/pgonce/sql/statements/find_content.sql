-- Find runs that took this content, under whatever identity.
-- Lock: none.
-- Zero rows: this content is new.
select r.run_id, r.job, r.kind, r.source, r.version, r.reading::text, r.created_at
from pgonce.run as r
where r.digest = %(digest)s::text
order by r.run_id
