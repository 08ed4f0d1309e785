-- Find events whose run is not there, is another job's, or has not read as far as the event's line.
-- Lock: none.
-- Zero rows: every event can be traced to a row that was read.
select
    case
        when r.run_id is null then 'run_missing'
        when r.job <> e.job then 'run_of_another_job'
        when s.lines is null then 'start_missing'
        else 'line_not_read'
    end as kind,
    e.job, e.source, e.event_id, e.run_id, e.line, e.epoch, s.lines, count(*) over () as found
from pgonce.event as e
left join pgonce.run as r on r.run_id = e.run_id
left join (
    select t.run_id, max(t.lines) as lines, max(t.epoch) as epoch
    from pgonce.start as t
    group by t.run_id
) as s on s.run_id = e.run_id
where (%(job)s::text is null or e.job = %(job)s::text)
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
    and (r.run_id is null or r.job <> e.job or s.lines is null or e.line > s.lines + 1 or e.epoch > s.epoch)
order by e.job, e.source, e.event_id
limit %(limit)s::integer
