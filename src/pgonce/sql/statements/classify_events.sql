-- Find which ids of a chunk are stored, and whether amount and payload text are those handed in.
-- Lock: none. `completed` is final and so is its payload: it may be recognised without a lock.
-- Zero rows: none of the ids is stored.
select k.n, e.status, e.amount_cents = k.amount_cents as same_amount, e.payload = k.payload as same_text, e.run_id, e.line
from unnest(%(sources)s::text[], %(event_ids)s::text[], %(amounts)s::bigint[], %(payloads)s::text[])
    with ordinality as k (source, event_id, amount_cents, payload, n)
cross join lateral (
    select s.status, s.amount_cents, s.payload, s.run_id, s.line
    from pgonce.event as s
    where s.job = %(job)s::text and s.source = k.source and s.event_id = k.event_id
    offset 0
) as e
