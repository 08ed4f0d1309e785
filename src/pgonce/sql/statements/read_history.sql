-- Read what became of an event after it was first stored.
-- Lock: none.
-- Zero rows: nothing did.
select
    h.step, h.action, h.old_status, h.old_amount_cents, h.old_payload, h.old_error, h.old_attempts, h.who, h.why,
    h.run_id, h.epoch, h.recorded_at, h.granted
from pgonce.event_history as h
where h.job = %(job)s::text and h.source = %(source)s::text and h.event_id = %(event_id)s::text
order by h.step
