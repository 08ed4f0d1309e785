-- Lock the next failed events of a job, of one run of it or of one source, in key order. An event that was reopened by
-- this very command and has failed again meanwhile is left alone.
-- Lock: `for no key update` on each event row; waits for who holds it.
-- Zero rows: none is failed any more.
select e.source, e.event_id
from pgonce.event as e
where e.job = %(job)s::text and e.status = 'failed'
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
    and (%(source)s::text is null or e.source = %(source)s::text)
    and not exists (
        select 1
        from pgonce.event_history as h
        where h.job = e.job and h.source = e.source and h.event_id = e.event_id and h.action = 'reopened'
            and h.who = %(who)s::text and h.why = %(why)s::text and h.recorded_at >= %(since)s::timestamptz
    )
order by e.source, e.event_id
limit %(limit)s::integer
for no key update of e
