-- Count the rows of a run by their result, from committed rows: its events, its findings, and its replayed rows.
-- Amended events are looked up one by one, so that all others are only added up: an event counts for what its row said.
-- A row that completed an event which an earlier row had left pending is a replay of that row here. What became of the
-- replayed rows is known from the newest start that read the whole input again, if there is one.
-- Lock: none.
-- Zero rows: never; one row a result.
select t.result, t.n, t.cents
from (
    select
        count(*) filter (where v.status in ('completed', 'pruned') and not v.adopted) as applied,
        sum(v.amount_cents) filter (where v.status in ('completed', 'pruned') and not v.adopted) as applied_cents,
        count(*) filter (where v.adopted) as adopted,
        sum(v.amount_cents) filter (where v.adopted) as adopted_cents,
        count(*) filter (where v.status = 'failed') as failed,
        sum(v.amount_cents) filter (where v.status = 'failed') as failed_cents,
        count(*) filter (where v.status = 'pending') as pending,
        sum(v.amount_cents) filter (where v.status = 'pending') as pending_cents
    from pgonce.event as v
    where v.job = %(job)s::text and v.run_id = %(run_id)s::bigint
) as e
cross join (
    select
        sum(h.old_amount_cents - v.amount_cents) filter (
            where v.status in ('completed', 'pruned') and not v.adopted
        ) as applied_cents,
        sum(h.old_amount_cents - v.amount_cents) filter (where v.adopted) as adopted_cents,
        sum(h.old_amount_cents - v.amount_cents) filter (where v.status = 'failed') as failed_cents,
        sum(h.old_amount_cents - v.amount_cents) filter (where v.status = 'pending') as pending_cents
    from (
        select distinct on (a.source, a.event_id) a.source, a.event_id, a.old_amount_cents::numeric as old_amount_cents
        from pgonce.event_history as a
        where a.job = %(job)s::text and a.action = 'amended'
        order by a.source, a.event_id, a.step
    ) as h
    cross join lateral (
        select s.status, s.adopted, s.amount_cents
        from pgonce.event as s
        where s.job = %(job)s::text and s.source = h.source and s.event_id = h.event_id
            and s.run_id = %(run_id)s::bigint
        offset 0
    ) as v
) as amended
cross join lateral (
    values
        ('applied', e.applied, e.applied_cents + coalesce(amended.applied_cents, 0)),
        ('adopted', e.adopted, e.adopted_cents + coalesce(amended.adopted_cents, 0)),
        ('failed', e.failed, e.failed_cents + coalesce(amended.failed_cents, 0)),
        ('pending', e.pending, e.pending_cents + coalesce(amended.pending_cents, 0))
) as t (result, n, cents)
where t.n > 0
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
