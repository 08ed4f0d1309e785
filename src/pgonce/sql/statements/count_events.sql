-- Count the events of all jobs, or of one, by their status, with the sum of their amounts.
-- Lock: none.
-- Zero rows: no event is stored.
select
    e.job,
    case when e.adopted and e.status = 'completed' then 'adopted' else e.status end as status,
    count(*),
    coalesce(sum(e.amount_cents), 0)
from pgonce.event as e
where %(job)s::text is null or e.job = %(job)s::text
group by 1, 2
order by 1, 2
