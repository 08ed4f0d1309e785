-- Count what one start did, from committed rows: events it stored, pending events it completed late, findings, replayed rows.
-- A start that read a finished input again met the run's open events and its findings, whichever start stored them.
-- Events that were completed late are looked up one by one, so that all others are only added up.
-- Lock: none.
-- Zero rows: never; one row a result.
select t.result, t.n, t.cents
from pgonce.start as s
cross join lateral (
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
    from pgonce.event as v
    where v.job = %(job)s::text and v.run_id = %(run_id)s::bigint
        and (v.epoch = s.epoch or s.replay and v.status in ('pending', 'failed'))
) as e
cross join lateral (
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
        where a.job = %(job)s::text and a.action = 'applied'
    ) as h
    cross join lateral (
        select x.status, x.adopted, x.amount_cents
        from pgonce.event as x
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
where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer and t.n > 0
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
