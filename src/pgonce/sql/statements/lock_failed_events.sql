-- Lock the next failed events of a job, or of one run of it, in key order.
-- Lock: `for no key update` on each event row; waits for who holds it.
-- Zero rows: none is failed any more.
select e.source, e.event_id
from pgonce.event as e
where e.job = %(job)s::text and e.status = 'failed'
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
order by e.source, e.event_id
limit %(limit)s::integer
for no key update of e
