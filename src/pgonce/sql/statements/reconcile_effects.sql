-- Find effects without a completed event that was not adopted, such events without an effect, and amounts that differ.
-- Lock: none.
-- Zero rows: every effect has its event, and the other way round.
select
    case
        when e.event_id is null then 'effect_without_event'
        when f.event_id is null then 'effect_missing'
        when e.adopted then 'effect_of_adopted_event'
        when e.status not in ('completed', 'pruned') then 'effect_of_open_event'
        else 'effect_amount_differs'
    end as kind,
    coalesce(e.job, f.job), coalesce(e.source, f.source), coalesce(e.event_id, f.event_id), e.run_id, e.line, e.status,
    e.amount_cents, f.amount_cents, count(*) over () as found
from pgonce.event as e
full join pgonce.effect as f on f.job = e.job and f.source = e.source and f.event_id = e.event_id
where (%(job)s::text is null or coalesce(e.job, f.job) = %(job)s::text)
    and (%(run_id)s::bigint is null or e.run_id = %(run_id)s::bigint)
    and (
        (e.status in ('completed', 'pruned') and not e.adopted) is distinct from (f.event_id is not null)
        or e.amount_cents <> f.amount_cents
    )
order by 2, 3, 4
limit %(limit)s::integer
