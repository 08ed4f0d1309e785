-- Put a stored version of a job's definition in force.
-- Lock: the job's row, held already.
-- Zero rows: always; it returns none.
update pgonce.job as j
set version = %(version)s::integer
where j.job = %(job)s::text
