-- List events of a job in the order of their identity.
-- Lock: none.
-- Zero rows: no event answers the question.
select
    e.source, e.event_id, e.status, e.amount_cents, e.attempts, e.adopted, e.error, e.run_id, e.epoch, e.line,
    e.recorded_at, coalesce(e.granted, 0) as granted
from pgonce.event as e
where e.job = %(job)s::text
    and (%(status)s::text is null or e.status = %(status)s::text)
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
order by e.source, e.event_id
limit %(limit)s::bigint
