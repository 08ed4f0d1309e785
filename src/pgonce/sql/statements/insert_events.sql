-- Claim new events by inserting their keys in key order, and write the effects of those that are completed.
-- Lock: the inserted keys; a second inserter of one waits here until this transaction ends.
-- Zero rows: never; the count is lower than the number handed in when another transaction stored some of the keys. The
-- second number is that of effects which something kept from being stored.
with new_event as (
    insert into pgonce.event (
        job, source, event_id, status, amount_cents, payload, run_id, line, epoch, attempts, adopted, error
    )
    select
        %(job)s::text, k.source, k.event_id, k.status, k.amount_cents, k.payload, %(run_id)s::bigint, k.line,
        %(epoch)s::integer, %(attempts)s::integer, %(adopted)s::boolean and k.status = 'completed', k.error
    from unnest(
        %(sources)s::text[], %(event_ids)s::text[], %(amounts)s::bigint[], %(payloads)s::text[], %(lines)s::bigint[],
        %(statuses)s::text[], %(errors)s::text[]
    ) with ordinality as k (source, event_id, amount_cents, payload, line, status, error, n)
    order by k.n
    on conflict (job, source, event_id) do nothing
    returning job, source, event_id, amount_cents, status, adopted
),
new_effect as (
    insert into pgonce.effect (job, source, event_id, amount_cents)
    select n.job, n.source, n.event_id, n.amount_cents
    from new_event as n
    where n.status = 'completed' and not n.adopted
    returning event_id
)
select count(*), count(*) filter (where n.status = 'completed' and not n.adopted) - (select count(*) from new_effect)
from new_event as n
