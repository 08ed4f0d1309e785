-- Find the newest run of a job that read an input of this name.
-- Lock: none.
-- Zero rows: no input of this name was read before.
select r.run_id, r.digest, r.finished_at, s.position, s.lines
from pgonce.start as s
join pgonce.run as r on r.run_id = s.run_id
where r.job = %(job)s::text and r.source = %(source)s::text and s.input_name = %(input_name)s::text
order by s.started_at desc
limit 1
