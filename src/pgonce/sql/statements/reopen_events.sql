-- Make events that are locked by this transaction pending again with all their attempts, and keep what stood there. The
-- payload stays and is not copied. The runs that own them are marked, so that their inputs are read again.
-- Lock: the event rows, held already; then the runs' rows.
-- Zero rows: never; the count is lower than the number handed in when one of them was neither failed nor pending.
with old as (
    select e.job, e.source, e.event_id, e.status, e.amount_cents, e.error, e.attempts
    from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
    join pgonce.event as e on e.job = %(job)s::text and e.source = k.source and e.event_id = k.event_id
    where e.status in ('failed', 'pending')
),
history as (
    insert into pgonce.event_history (
        job, source, event_id, step, action, old_status, old_amount_cents, old_error, old_attempts, who, why
    )
    select
        o.job, o.source, o.event_id,
        1 + coalesce((
            select max(h.step)
            from pgonce.event_history as h
            where h.job = o.job and h.source = o.source and h.event_id = o.event_id
        ), 0),
        'reopened', o.status, o.amount_cents, o.error, o.attempts, %(who)s::text, %(why)s::text
    from old as o
),
opened as (
    update pgonce.event as e
    set status = 'pending', attempts = 0, granted = null, error = null
    from old as o
    where e.job = o.job and e.source = o.source and e.event_id = o.event_id
    returning e.run_id
),
touched as (
    update pgonce.run as r
    set touched = true
    where r.run_id in (select p.run_id from opened as p)
)
select count(*) from opened
