-- Hash what is stored between two ids, of one job and source: amount, id and payload of each event in key order, written
-- as rows of a binary COPY, of which no two lists are the same bytes. `pgonce.engine.batch` makes the same hash of the rows
-- it has. No more events are looked at than it has rows, and one.
-- Lock: none. `completed` is final and so is its payload: it may be recognised without a lock.
-- Zero rows: never. One row with the hash, null if there are none; payloads longer than its longest are left out of it.
select
    sha256(string_agg(
        '\x000300000008'::bytea || int8send(e.amount_cents) || int4send(octet_length(e.event_id)) || textsend(e.event_id)
        || int4send(octet_length(e.payload)) || textsend(e.payload), ''::bytea order by e.event_id
    ) filter (where octet_length(e.payload) <= %(payload_bytes)s::integer)) as digest,
    count(*) as events, min(e.run_id) as first_run, max(e.run_id) as last_run,
    bool_and(e.status = 'completed') as all_completed
from (
    select s.event_id, s.amount_cents, s.payload, s.status, s.run_id
    from pgonce.event as s
    where s.job = %(job)s::text and s.source = %(source)s::text
        and s.event_id between %(low)s::text and %(high)s::text
    order by s.job, s.source, s.event_id
    limit %(rows)s::bigint + 1
) as e
