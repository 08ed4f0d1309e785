-- List what needs a person, in the order of the inputs: rejected rows, conflicts, and failed events.
-- Lock: none.
-- Zero rows: nothing does.
select
    q.run_id, q.line, q.kind, q.source, q.event_id, q.amount_cents, q.reason, q.recorded_at, q.raw, q.payload,
    r.reading, d.spec
from (
    select f.run_id, f.line, f.kind, f.source, f.event_id, f.amount_cents, f.reason, f.recorded_at, f.raw,
        null::text as payload
    from pgonce.finding as f
    union all
    select e.run_id, e.line, 'failed', e.source, e.event_id, e.amount_cents, e.error, e.recorded_at, null::bytea,
        e.payload
    from pgonce.event as e
    where e.job = %(job)s::text and e.status = 'failed'
) as q
join pgonce.run as r on r.run_id = q.run_id
join pgonce.definition as d on d.job = r.job and d.version = r.version
where r.job = %(job)s::text
    and (%(run_id)s::bigint is null or q.run_id = %(run_id)s::bigint)
    and (%(line)s::bigint is null or q.line = %(line)s::bigint)
    and (%(kinds)s::text[] is null or q.kind = any(%(kinds)s::text[]))
order by q.run_id, q.line
limit %(limit)s::bigint
