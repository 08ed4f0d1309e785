-- Keep the findings of a chunk: rows that were rejected or conflict with the stored event.
-- Lock: the inserted keys.
-- Zero rows: always; it returns none. A finding that stands already (the input is read again) stays as it was.
insert into pgonce.finding (run_id, epoch, line, kind, source, event_id, amount_cents, reason, raw)
select
    %(run_id)s::bigint, %(epoch)s::integer, k.line, k.kind, k.source, k.event_id, k.amount_cents, k.reason, k.raw
from unnest(
    %(lines)s::bigint[], %(kinds)s::text[], %(sources)s::text[], %(event_ids)s::text[], %(amounts)s::bigint[],
    %(reasons)s::text[], %(raws)s::bytea[]
) as k (line, kind, source, event_id, amount_cents, reason, raw)
on conflict (run_id, line) do nothing
