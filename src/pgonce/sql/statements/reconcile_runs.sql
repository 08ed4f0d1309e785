-- List the runs to be balanced, with what was recorded when they finished, and how many of their events an operator touched.
-- Lock: none.
-- Zero rows: there is no such run.
select
    r.run_id, r.job, r.kind, r.source, r.finished_at is not null as finished, r.outcome, r.touched,
    coalesce(o.events, 0) as reopened
from pgonce.run as r
left join (
    select e.run_id, count(distinct (e.job, e.source, e.event_id)) as events
    from pgonce.event_history as h
    join pgonce.event as e on e.job = h.job and e.source = h.source and e.event_id = h.event_id
    where h.action in ('reopened', 'amended')
    group by e.run_id
) as o on o.run_id = r.run_id
where (%(job)s::text is null or r.job = %(job)s::text)
    and (%(run_id)s::bigint is null or r.run_id = %(run_id)s::bigint)
order by r.run_id
