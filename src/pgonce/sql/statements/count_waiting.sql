-- Count the pending events of a job, of one run of it or of one source, that a run will try: they have attempts left.
-- Lock: none.
-- Zero rows: never.
select count(*)
from pgonce.event as e
join pgonce.job as j on j.job = e.job
where e.job = %(job)s::text and e.status = 'pending' and e.attempts < j.attempt_budget + coalesce(e.granted, 0)
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
    and (%(source)s::text is null or e.source = %(source)s::text)
