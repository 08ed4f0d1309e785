-- Count the rows of a run by their result, from committed rows: its events, its findings, and its replayed rows.
-- A row that completed an event which an earlier row had left pending is a replay of that row here. What became of the
-- replayed rows is known from the newest start that read the whole input again, if there is one.
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
select t.result, t.n::bigint, t.cents
from (
    select
        sum(s.rows_read) as rows_read, sum(s.cents_read) as cents_read,
        sum(s.already + s.late + s.failed_again + s.pending_again) as replays,
        sum(s.already_cents + s.late_cents + s.failed_again_cents + s.pending_again_cents) as replays_cents,
        sum(s.failed_again) as failed, sum(s.failed_again_cents) as failed_cents,
        sum(s.pending_again) as pending, sum(s.pending_again_cents) as pending_cents
    from pgonce.start as s
    where s.run_id = %(run_id)s::bigint and not s.replay
) as f
left join lateral (
    select
        s.failed_again as failed, s.failed_again_cents as failed_cents, s.pending_again as pending,
        s.pending_again_cents as pending_cents
    from pgonce.start as s
    where s.run_id = %(run_id)s::bigint and s.replay and s.ended_how = 'finished'
    order by s.epoch desc
    limit 1
) as a on true
cross join lateral (
    select
        coalesce(a.failed, f.failed) as failed, coalesce(a.failed_cents, f.failed_cents) as failed_cents,
        coalesce(a.pending, f.pending) as pending, coalesce(a.pending_cents, f.pending_cents) as pending_cents
) as o
cross join lateral (
    values
        ('rows', f.rows_read, f.cents_read),
        ('already', f.replays - o.failed - o.pending, f.replays_cents - o.failed_cents - o.pending_cents),
        ('failed', o.failed, o.failed_cents),
        ('pending', o.pending, o.pending_cents)
) as t (result, n, cents)
where t.n is not null
