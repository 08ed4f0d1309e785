-- Count, a job each or of one job, the pending events whose attempts are used up: no run tries them again without a grant.
-- Lock: none.
-- Zero rows: there are none.
select e.job, count(*)
from pgonce.event as e
join pgonce.job as j on j.job = e.job
where (%(job)s::text is null or e.job = %(job)s::text)
    and e.status = 'pending' and e.attempts >= j.attempt_budget + coalesce(e.granted, 0)
group by e.job
order by e.job
