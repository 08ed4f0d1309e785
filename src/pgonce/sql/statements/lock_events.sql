-- Lock stored events in key order and then look at them: the versions returned are the ones that are locked. The ids come
-- in key order; each is looked up by its key.
-- Lock: `for no key update` on each event row; waits for who holds it.
-- Zero rows: none of the ids is stored.
select
    e.source, e.event_id, e.status, e.amount_cents, e.payload, e.attempts, e.run_id, e.line, e.error,
    coalesce(e.granted, 0) as granted
from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
cross join lateral (
    select
        s.source, s.event_id, s.status, s.amount_cents, s.payload, s.attempts, s.run_id, s.line, s.error, s.granted
    from pgonce.event as s
    where s.job = %(job)s::text and s.source = k.source and s.event_id = k.event_id
    for no key update of s
) as e
