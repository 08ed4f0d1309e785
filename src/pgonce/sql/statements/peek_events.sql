-- Look at stored events as `lock_events` does, but without the lock: for a plan, which must write nothing.
-- `counted_cents` is what the event's own row counts for in its run: the amount before anybody amended it.
-- Lock: none.
-- Zero rows: none of the ids is stored.
select
    e.source, e.event_id, e.attempts, coalesce(e.granted, 0) as granted, e.amount_cents,
    coalesce(h.old_amount_cents, e.amount_cents) as counted_cents, e.error
from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
join pgonce.event as e on e.job = %(job)s::text and e.source = k.source and e.event_id = k.event_id
left join lateral (
    select a.old_amount_cents
    from pgonce.event_history as a
    where a.job = e.job and a.source = e.source and a.event_id = e.event_id and a.action = 'amended'
    order by a.step
    limit 1
) as h on true
