-- Read what stands in the database about the rows of a block: the event each names, and the finding kept of its line.
-- Lock: none.
-- Zero rows: never; one row for each row handed in. No status and no kind: nothing is stored about it.
select k.n, e.status, e.adopted, e.run_id, e.line, e.error, f.kind, f.reason
from unnest(%(sources)s::text[], %(event_ids)s::text[], %(lines)s::bigint[])
    with ordinality as k (source, event_id, line, n)
left join lateral (
    select s.status, s.adopted, s.run_id, s.line, s.error
    from pgonce.event as s
    where s.job = %(job)s::text and s.source = k.source and s.event_id = k.event_id
    offset 0
) as e on true
left join lateral (
    select g.kind, g.reason
    from pgonce.finding as g
    where g.run_id = %(run_id)s::bigint and g.line = k.line
    offset 0
) as f on true
order by k.n
