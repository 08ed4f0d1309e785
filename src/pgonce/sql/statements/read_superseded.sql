-- Read what amended events said before: a row that still says that is a replay, not a conflict.
-- Lock: none.
-- Zero rows: none of these events was amended.
select h.source, h.event_id, h.old_amount_cents, h.old_payload
from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
join pgonce.event_history as h on h.job = %(job)s::text and h.source = k.source and h.event_id = k.event_id
where h.action = 'amended' and h.old_payload is not null
