-- Sift a batch: which of its ids are not stored, and how many are stored, completed and the same.
-- Lock: none. `completed` is final and so is its payload: it may be recognised without a lock.
-- Zero rows: never. One row: the numbers, from 1, of those not stored; how many are the same, and their cents; the runs
-- that stored any. What is neither has to be looked at one by one.
select
    array_agg(k.n order by k.n) filter (where e.status is null) as absent,
    count(*) filter (where e.status = 'completed' and e.amount_cents = k.amount_cents and e.payload = k.payload) as same,
    coalesce(sum(k.amount_cents) filter (
        where e.status = 'completed' and e.amount_cents = k.amount_cents and e.payload = k.payload
    ), 0)::numeric as same_cents,
    array_agg(distinct e.run_id) filter (where e.status is not null) as runs
from unnest(%(sources)s::text[], %(event_ids)s::text[], %(amounts)s::bigint[], %(payloads)s::text[])
    with ordinality as k (source, event_id, amount_cents, payload, n)
left join lateral (
    select s.status, s.amount_cents, s.payload, s.run_id
    from pgonce.event as s
    where s.job = %(job)s::text and s.source = k.source and s.event_id = k.event_id
    offset 0
) as e on true
