-- Read stored events whole, with the run that brought them and the definition they were read by.
-- Lock: none.
-- Zero rows: none of the ids is stored.
select
    e.source, e.event_id, e.status, e.amount_cents, e.payload, e.fingerprint, e.run_id, e.line, e.recorded_at,
    s.input_name, r.version
from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
cross join lateral (
    select v.*
    from pgonce.event as v
    where v.job = %(job)s::text and v.source = k.source and v.event_id = k.event_id
    offset 0
) as e
join pgonce.run as r on r.run_id = e.run_id
left join pgonce.start as s on s.run_id = e.run_id and s.epoch = e.epoch
