-- Read the first rows of a run that a person has to look at: its findings, and its events that failed or are pending.
-- Lock: none.
-- Zero rows: every row of the run is applied or a replay.
select b.line, b.kind, b.reason
from (
    select f.line, f.kind, f.reason
    from pgonce.finding as f
    where f.run_id = %(run_id)s::bigint
    union all
    select e.line, e.status, coalesce(e.error, 'no reason was stored')
    from pgonce.event as e
    where e.job = %(job)s::text and e.run_id = %(run_id)s::bigint and e.status in ('pending', 'failed')
) as b
order by b.line
limit %(at_most)s::integer
