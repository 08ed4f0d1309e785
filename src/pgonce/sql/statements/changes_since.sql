-- Find which of these events somebody reopened, or granted more attempts, for a reason since a moment.
-- Lock: none.
-- Zero rows: none of them.
select h.source, h.event_id, h.action
from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
join pgonce.event_history as h on h.job = %(job)s::text and h.source = k.source and h.event_id = k.event_id
where h.action in ('reopened', 'granted') and h.who = %(who)s::text and h.why = %(why)s::text
    and h.recorded_at >= %(since)s::timestamptz
order by h.source, h.event_id, h.step
