-- Lock stored events in key order and then look at them: the versions returned are the ones that are locked.
-- Lock: `for no key update` on each event row; waits for who holds it.
-- Zero rows: none of the ids is stored.
select
    e.source, e.event_id, e.status, e.amount_cents, e.payload, e.attempts, e.run_id, e.line, e.error,
    coalesce(e.granted, 0) as granted
from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
join pgonce.event as e on e.job = %(job)s::text and e.source = k.source and e.event_id = k.event_id
order by e.source, e.event_id
for no key update of e
