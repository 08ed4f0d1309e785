-- Read the findings of a job that name an event.
-- Lock: none.
-- Zero rows: no row conflicted with it.
select f.run_id, f.line, f.kind, f.amount_cents, f.reason, f.recorded_at
from pgonce.finding as f
join pgonce.run as r on r.run_id = f.run_id
where r.job = %(job)s::text and f.source = %(source)s::text and f.event_id = %(event_id)s::text
order by f.run_id, f.line
