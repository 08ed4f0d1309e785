-- Lock the next pending events of a job, of one run of it or of one source, whose attempts are used up, in key order. An
-- event that was granted attempts by this very command and has used them up meanwhile is left alone.
-- Lock: `for no key update` on each event row; waits for who holds it.
-- Zero rows: none needs a grant any more.
select e.source, e.event_id
from pgonce.event as e
join pgonce.job as j on j.job = e.job
where e.job = %(job)s::text and e.status = 'pending' and e.attempts >= j.attempt_budget + coalesce(e.granted, 0)
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
    and (%(source)s::text is null or e.source = %(source)s::text)
    and not exists (
        select 1
        from pgonce.event_history as h
        where h.job = e.job and h.source = e.source and h.event_id = e.event_id and h.action = 'granted'
            and h.who = %(who)s::text and h.why = %(why)s::text and h.recorded_at >= %(since)s::timestamptz
    )
order by e.source, e.event_id
limit %(limit)s::integer
for no key update of e
