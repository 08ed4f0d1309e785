-- Count the events that somebody reopened, or granted more attempts, for a reason since a moment.
-- Lock: none.
-- Zero rows: never.
select count(*)
from pgonce.event_history as h
where h.job = %(job)s::text and h.action = %(action)s::text and h.who = %(who)s::text and h.why = %(why)s::text
    and h.recorded_at >= %(since)s::timestamptz
