-- Count what one start did, from committed rows: events it stored, pending events it completed late, findings, replayed rows.
-- A start that read a finished input again met the run's open events and its findings, whichever start stored them.
-- Lock: none.
-- Zero rows: never; one row a result.
select e.result, count(*), coalesce(sum(e.amount_cents), 0)
from (
    select
        case
            when v.status not in ('completed', 'pruned') then v.status
            when v.adopted then 'adopted'
            else 'applied'
        end as result,
        v.amount_cents
    from pgonce.event as v
    join pgonce.start as s on s.run_id = v.run_id and s.epoch = %(epoch)s::integer
    where v.job = %(job)s::text and v.run_id = %(run_id)s::bigint
        and (v.epoch = s.epoch or s.replay and v.status in ('pending', 'failed'))
        and not exists (
            select
            from pgonce.event_history as h
            where h.job = v.job and h.source = v.source and h.event_id = v.event_id and h.action = 'applied'
        )
) as e
group by e.result
union all
select f.kind, count(*), coalesce(sum(f.amount_cents), 0)
from pgonce.finding as f
join pgonce.start as s on s.run_id = f.run_id and s.epoch = %(epoch)s::integer
where f.run_id = %(run_id)s::bigint and (f.epoch = s.epoch or s.replay)
group by f.kind
union all
select t.result, t.n, t.cents
from pgonce.start as s
cross join lateral (
    values
        ('rows', s.rows_read, s.cents_read),
        ('applied', s.late, s.late_cents),
        ('already', s.already, s.already_cents),
        ('failed', s.failed_again, s.failed_again_cents),
        ('pending', s.pending_again, s.pending_again_cents)
) as t (result, n, cents)
where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer
