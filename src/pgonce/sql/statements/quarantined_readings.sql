-- Find in how many ways the inputs of quarantined rows were read: rows of several ways cannot stand in one file.
-- Lock: none.
-- Zero rows: nothing is quarantined.
select distinct r.reading
from pgonce.run as r
where r.job = %(job)s::text and (%(run_id)s::bigint is null or r.run_id = %(run_id)s::bigint)
    and (
        exists (
            select
            from pgonce.finding as f
            where f.run_id = r.run_id and (%(kinds)s::text[] is null or f.kind = any(%(kinds)s::text[]))
        )
        or (%(kinds)s::text[] is null or 'failed' = any(%(kinds)s::text[])) and exists (
            select
            from pgonce.event as e
            where e.job = r.job and e.run_id = r.run_id and e.status = 'failed'
        )
    )
limit 2
