-- Count the rows of a run by their result, from committed rows: its events, its findings, and its replayed rows.
-- A row that completed an event which an earlier row had left pending is a replay of that row here.
-- Lock: none.
-- Zero rows: never; one row a result.
select e.result, count(*), coalesce(sum(e.cents), 0)
from (
    select
        case
            when v.status in ('completed', 'pruned') and v.adopted then 'adopted'
            when v.status in ('completed', 'pruned') then 'applied'
            else v.status
        end as result,
        coalesce(h.old_amount_cents, v.amount_cents) as cents
    from pgonce.event as v
    left join lateral (
        select a.old_amount_cents
        from pgonce.event_history as a
        where a.job = v.job and a.source = v.source and a.event_id = v.event_id and a.action = 'amended'
        order by a.step
        limit 1
    ) as h on true
    where v.job = %(job)s::text and v.run_id = %(run_id)s::bigint
) as e
group by e.result
union all
select f.kind, count(*), coalesce(sum(f.amount_cents), 0)
from pgonce.finding as f
where f.run_id = %(run_id)s::bigint
group by f.kind
union all
select t.result, sum(t.n)::bigint, sum(t.cents)
from pgonce.start as s
cross join lateral (
    values
        ('rows', s.rows_read, s.cents_read),
        ('already', s.already + s.late, s.already_cents + s.late_cents),
        ('failed', s.failed_again, s.failed_again_cents),
        ('pending', s.pending_again, s.pending_again_cents)
) as t (result, n, cents)
where s.run_id = %(run_id)s::bigint and not s.replay
group by t.result
