-- Count the rows of a run by their result, from committed rows: its events, its findings, and its replayed rows; and what
-- one of its starts did, if one is named: events it stored, pending events it completed late, findings, replayed rows.
-- The run's events are read once for both, and only added up; those that are open are found by their own index, those
-- that were amended or completed late are looked up one by one.
-- An event counts for what its row said. A row that completed an event which an earlier row had left pending is a replay
-- of that row for the run. What became of the replayed rows is known from the newest start that read the whole input
-- again, if there is one. A start that read a finished input again met the run's open events and its findings, whichever
-- start stored them.
-- Lock: none.
-- Zero rows: never; one row a result of the run, then of the start.
with added as materialized (
    select
        count(*) as n, coalesce(sum(v.amount_cents), 0) as cents,
        count(*) filter (where v.adopted) as adopted,
        coalesce(sum(v.amount_cents) filter (where v.adopted), 0) as adopted_cents,
        count(*) filter (where v.epoch = %(epoch)s::integer) as own,
        coalesce(sum(v.amount_cents) filter (where v.epoch = %(epoch)s::integer), 0) as own_cents,
        count(*) filter (where v.adopted and v.epoch = %(epoch)s::integer) as own_adopted,
        coalesce(sum(v.amount_cents) filter (where v.adopted and v.epoch = %(epoch)s::integer), 0) as own_adopted_cents
    from pgonce.event as v
    where v.job = %(job)s::text and v.run_id = %(run_id)s::bigint
),
still_open as materialized (
    select
        v.status, v.adopted, coalesce(v.epoch = %(epoch)s::integer, false) as own, count(*) as n,
        sum(v.amount_cents) as cents
    from pgonce.event as v
    where v.job = %(job)s::text and v.run_id = %(run_id)s::bigint and v.status in ('pending', 'failed')
    group by v.status, v.adopted, v.epoch
),
this as materialized (
    select s.*
    from pgonce.start as s
    where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer
)
select 'run', t.result, t.n, t.cents
from (
    select
        a.n - a.adopted - o.plain as applied, a.cents - a.adopted_cents - o.plain_cents as applied_cents,
        a.adopted, a.adopted_cents, o.failed, o.failed_cents, o.pending, o.pending_cents
    from added as a
    cross join (
        select
            coalesce(sum(p.n) filter (where not p.adopted), 0) as plain,
            coalesce(sum(p.cents) filter (where not p.adopted), 0) as plain_cents,
            coalesce(sum(p.n) filter (where p.status = 'failed'), 0) as failed,
            coalesce(sum(p.cents) filter (where p.status = 'failed'), 0) as failed_cents,
            coalesce(sum(p.n) filter (where p.status = 'pending'), 0) as pending,
            coalesce(sum(p.cents) filter (where p.status = 'pending'), 0) as pending_cents
        from still_open as p
    ) as o
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
select 'run', f.kind, count(*), coalesce(sum(f.amount_cents), 0)
from pgonce.finding as f
where f.run_id = %(run_id)s::bigint
group by f.kind
union all
select 'run', t.result, t.n, t.cents
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
union all
select 'start', t.result, t.n, t.cents
from (
    select
        a.own - a.own_adopted - o.plain as applied, a.own_cents - a.own_adopted_cents - o.plain_cents as applied_cents,
        a.own_adopted as adopted, a.own_adopted_cents as adopted_cents,
        o.failed, o.failed_cents, o.pending, o.pending_cents
    from this as s
    cross join added as a
    cross join lateral (
        select
            coalesce(sum(p.n) filter (where p.own and not p.adopted), 0) as plain,
            coalesce(sum(p.cents) filter (where p.own and not p.adopted), 0) as plain_cents,
            coalesce(sum(p.n) filter (where p.status = 'failed' and (p.own or s.replay)), 0) as failed,
            coalesce(sum(p.cents) filter (where p.status = 'failed' and (p.own or s.replay)), 0) as failed_cents,
            coalesce(sum(p.n) filter (where p.status = 'pending' and (p.own or s.replay)), 0) as pending,
            coalesce(sum(p.cents) filter (where p.status = 'pending' and (p.own or s.replay)), 0) as pending_cents
        from still_open as p
    ) as o
) as e
cross join (
    select
        count(*) filter (where v.status in ('completed', 'pruned') and not v.adopted) as applied,
        coalesce(sum(v.amount_cents) filter (
            where v.status in ('completed', 'pruned') and not v.adopted
        ), 0) as applied_cents,
        count(*) filter (where v.adopted) as adopted,
        coalesce(sum(v.amount_cents) filter (where v.adopted), 0) as adopted_cents,
        count(*) filter (where v.status = 'failed') as failed,
        coalesce(sum(v.amount_cents) filter (where v.status = 'failed'), 0) as failed_cents,
        count(*) filter (where v.status = 'pending') as pending,
        coalesce(sum(v.amount_cents) filter (where v.status = 'pending'), 0) as pending_cents
    from (
        select distinct a.source, a.event_id
        from pgonce.event_history as a
        where a.job = %(job)s::text and a.action = 'applied' and %(epoch)s::integer is not null
    ) as h
    cross join lateral (
        select x.status, x.adopted, x.amount_cents
        from pgonce.event as x
        cross join this as s
        where x.job = %(job)s::text and x.source = h.source and x.event_id = h.event_id
            and x.run_id = %(run_id)s::bigint
            and (x.epoch = s.epoch or s.replay and x.status in ('pending', 'failed'))
        offset 0
    ) as v
) as late
cross join lateral (
    values
        ('applied', e.applied - late.applied, e.applied_cents - late.applied_cents),
        ('adopted', e.adopted - late.adopted, e.adopted_cents - late.adopted_cents),
        ('failed', e.failed - late.failed, e.failed_cents - late.failed_cents),
        ('pending', e.pending - late.pending, e.pending_cents - late.pending_cents)
) as t (result, n, cents)
where t.n > 0
union all
select 'start', f.kind, count(*), coalesce(sum(f.amount_cents), 0)
from pgonce.finding as f
cross join this as s
where f.run_id = %(run_id)s::bigint and (f.epoch = s.epoch or s.replay)
group by f.kind
union all
select 'start', t.result, t.n, t.cents
from this as s
cross join lateral (
    values
        ('rows', s.rows_read, s.cents_read),
        ('applied', s.late, s.late_cents),
        ('already', s.already, s.already_cents),
        ('failed', s.failed_again, s.failed_again_cents),
        ('pending', s.pending_again, s.pending_again_cents)
) as t (result, n, cents)
