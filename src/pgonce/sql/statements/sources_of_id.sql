-- Find under which sources of a job an id is stored.
-- Lock: none.
-- Zero rows: under none.
select e.source
from pgonce.event as e
where e.job = %(job)s::text and e.event_id = %(event_id)s::text
order by e.source
limit %(limit)s::integer
