-- Record on a pending event, locked by this transaction, that it failed for good or stays pending, and why.
-- Lock: the event row, held already.
-- Zero rows: it was not pending.
update pgonce.event as e
set status = %(status)s::text, attempts = e.attempts + %(attempts)s::integer, error = %(error)s::text
where e.job = %(job)s::text and e.source = %(source)s::text and e.event_id = %(event_id)s::text
    and e.status = 'pending'
returning e.attempts
