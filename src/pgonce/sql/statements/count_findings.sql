-- Count the findings of all jobs, or of one, by their kind, with the sum of the amounts that could be read.
-- Lock: none.
-- Zero rows: no row was rejected and none conflicts.
select r.job, f.kind, count(*), coalesce(sum(f.amount_cents), 0)
from pgonce.finding as f
join pgonce.run as r on r.run_id = f.run_id
where %(job)s::text is null or r.job = %(job)s::text
group by r.job, f.kind
order by r.job, f.kind
