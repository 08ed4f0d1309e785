-- Count events by source and state with their cents, and their effects with theirs.
-- Lock: none.
-- Zero rows: there is no event.
select
    coalesce(e.job, f.job), coalesce(e.source, f.source), coalesce(e.status, 'none'), coalesce(e.adopted, false),
    count(e.event_id), coalesce(sum(e.amount_cents), 0), count(f.event_id), coalesce(sum(f.amount_cents), 0)
from pgonce.event as e
full join pgonce.effect as f on f.job = e.job and f.source = e.source and f.event_id = e.event_id
where (%(job)s::text is null or coalesce(e.job, f.job) = %(job)s::text)
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
group by 1, 2, 3, 4
order by 1, 2, 3, 4
