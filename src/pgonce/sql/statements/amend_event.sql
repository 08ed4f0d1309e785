-- Give an event that is locked by this transaction another amount and payload, make it pending with all its attempts, and
-- keep what stood there. The run that owns it is marked, so that its input is read again.
-- Lock: the event row, held already; then the run's row.
-- Zero rows: it was neither failed nor pending.
with old as (
    select e.job, e.source, e.event_id, e.status, e.amount_cents, e.payload, e.error, e.attempts
    from pgonce.event as e
    where e.job = %(job)s::text and e.source = %(source)s::text and e.event_id = %(event_id)s::text
        and e.status in ('failed', 'pending')
),
history as (
    insert into pgonce.event_history (
        job, source, event_id, step, action, old_status, old_amount_cents, old_payload, old_error, old_attempts, who, why
    )
    select
        o.job, o.source, o.event_id, %(step)s::integer, 'amended', o.status, o.amount_cents, o.payload, o.error,
        o.attempts, %(who)s::text, %(why)s::text
    from old as o
),
amended as (
    update pgonce.event as e
    set status = 'pending', attempts = 0, granted = null, error = null,
        amount_cents = %(amount_cents)s::bigint, payload = %(payload)s::text
    from old as o
    where e.job = o.job and e.source = o.source and e.event_id = o.event_id
    returning e.run_id
),
touched as (
    update pgonce.run as r
    set touched = true
    where r.run_id in (select a.run_id from amended as a)
)
select a.run_id from amended as a
