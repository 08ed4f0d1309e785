-- Find rows of an input that have two results: two events, or an event and a finding.
-- Lock: none.
-- Zero rows: every row has one.
select w.run_id, w.line, count(*) as results, min(w.named) as first, max(w.named) as last, count(*) over () as found
from (
    select e.run_id, e.line, e.event_id as named
    from pgonce.event as e
    join pgonce.run as r on r.run_id = e.run_id
    where (%(job)s::text is null or r.job = %(job)s::text) and (%(run_id)s::bigint is null or r.run_id = %(run_id)s::bigint)
    union all
    select f.run_id, f.line, 'a ' || f.kind || ' finding'
    from pgonce.finding as f
    join pgonce.run as r on r.run_id = f.run_id
    where (%(job)s::text is null or r.job = %(job)s::text) and (%(run_id)s::bigint is null or r.run_id = %(run_id)s::bigint)
) as w
group by w.run_id, w.line
having count(*) > 1
order by w.run_id, w.line
limit %(limit)s::integer
