-- Count, a job each, the pending events whose attempts are used up: no run tries them again without a grant.
-- Lock: none.
-- Zero rows: there are none.
select e.job, count(*)
from pgonce.event as e
join pgonce.job as j on j.job = e.job
where e.status = 'pending' and e.attempts >= j.attempt_budget
group by e.job
order by e.job
