-- Give pending events that are locked by this transaction, and whose attempts are used up, so many attempts more, and keep
-- who did and how many. The runs that own them are marked, so that their inputs are read again.
-- Lock: the event rows, held already; then the runs' rows.
-- Zero rows: never; the count is lower than the number handed in when one of them was not pending or had attempts left.
with old as (
    select
        e.job, e.source, e.event_id, e.amount_cents, e.error, e.attempts,
        e.attempts - j.attempt_budget + %(budget)s::integer as granted
    from unnest(%(sources)s::text[], %(event_ids)s::text[]) as k (source, event_id)
    join pgonce.event as e on e.job = %(job)s::text and e.source = k.source and e.event_id = k.event_id
    join pgonce.job as j on j.job = e.job
    where e.status = 'pending' and e.attempts >= j.attempt_budget + coalesce(e.granted, 0)
),
history as (
    insert into pgonce.event_history (
        job, source, event_id, step, action, old_status, old_amount_cents, old_error, old_attempts, who, why, granted
    )
    select
        o.job, o.source, o.event_id,
        1 + coalesce((
            select max(h.step)
            from pgonce.event_history as h
            where h.job = o.job and h.source = o.source and h.event_id = o.event_id
        ), 0),
        'granted', 'pending', o.amount_cents, o.error, o.attempts, %(who)s::text, %(why)s::text, %(budget)s::integer
    from old as o
),
given as (
    update pgonce.event as e
    set granted = o.granted
    from old as o
    where e.job = o.job and e.source = o.source and e.event_id = o.event_id
    returning e.run_id
),
touched as (
    update pgonce.run as r
    set touched = true
    where r.run_id in (select g.run_id from given as g)
)
select count(*) from given
