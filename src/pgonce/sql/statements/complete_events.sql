-- Complete events that are pending and locked by this transaction, write their effects, and say in their history who did.
-- Lock: the event rows, held already.
-- Zero rows: never; the count is lower than the number handed in when one of them was not pending. The second number is
-- that of effects which something kept from being stored, the third that of steps of the history.
with done as (
    update pgonce.event as e
    set status = 'completed', attempts = e.attempts + %(attempts)s::integer, error = null,
        adopted = %(adopted)s::boolean
    from (
        select b.job, b.source, b.event_id, b.error, b.attempts
        from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
        join pgonce.event as b on b.job = %(job)s::text and b.source = k.source and b.event_id = k.event_id
    ) as o
    where e.job = o.job and e.source = o.source and e.event_id = o.event_id and e.status = 'pending'
    returning e.job, e.source, e.event_id, e.amount_cents, e.payload, e.adopted, o.error, o.attempts
),
new_effect as (
    insert into pgonce.effect (job, source, event_id, amount_cents)
    select d.job, d.source, d.event_id, d.amount_cents
    from done as d
    where not d.adopted
    returning event_id
),
history as (
    insert into pgonce.event_history (
        job, source, event_id, step, action, old_status, old_amount_cents, old_payload, old_error, old_attempts, who,
        why, run_id, epoch
    )
    select
        d.job, d.source, d.event_id,
        1 + coalesce((
            select max(h.step)
            from pgonce.event_history as h
            where h.job = d.job and h.source = d.source and h.event_id = d.event_id
        ), 0),
        'applied', 'pending', d.amount_cents, d.payload, d.error, d.attempts, %(who)s::text, 'it was pending',
        %(run_id)s::bigint, %(epoch)s::integer
    from done as d
    returning event_id
)
select
    count(*), count(*) filter (where not d.adopted) - (select count(*) from new_effect),
    count(*) - (select count(*) from history)
from done as d
