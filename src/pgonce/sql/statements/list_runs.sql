-- List runs, the newest first: of all jobs or of one, all of them or only those that are not finished.
-- Lock: none.
-- Zero rows: there are none.
select
    r.run_id, r.job, r.version, r.kind, r.source, r.input_bytes, r.epoch, r.created_at, r.finished_at, r.outcome,
    r.touched
from pgonce.run as r
where (%(job)s::text is null or r.job = %(job)s::text) and (r.finished_at is null or not %(unfinished)s::boolean)
order by r.run_id desc
limit %(at_most)s::integer
