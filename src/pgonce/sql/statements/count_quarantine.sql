-- Count what needs a person, by kind.
-- Lock: none.
-- Zero rows: nothing does.
select f.kind, count(*)
from pgonce.finding as f
join pgonce.run as r on r.run_id = f.run_id
where r.job = %(job)s::text and (%(run_id)s::bigint is null or f.run_id = %(run_id)s::bigint)
group by f.kind
union all
select 'failed', count(*)
from pgonce.event as e
where e.job = %(job)s::text and e.status = 'failed'
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
having count(*) > 0
