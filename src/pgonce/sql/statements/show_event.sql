-- Read one event whole, with its effect, and the start and run that brought it.
-- Lock: none.
-- Zero rows: the id is not stored.
select
    e.status, e.amount_cents, e.payload, e.fingerprint, e.attempts, e.adopted, e.error, e.recorded_at, e.run_id, e.epoch,
    e.line, coalesce(e.granted, 0) as granted, f.amount_cents as effect_cents, r.kind, r.version, s.input_name, s.owner, s.started_at, d.spec
from pgonce.event as e
left join pgonce.effect as f on f.job = e.job and f.source = e.source and f.event_id = e.event_id
left join pgonce.run as r on r.run_id = e.run_id
left join pgonce.start as s on s.run_id = e.run_id and s.epoch = e.epoch
left join pgonce.definition as d on d.job = r.job and d.version = r.version
where e.job = %(job)s::text and e.source = %(source)s::text and e.event_id = %(event_id)s::text
