-- Find the run over this content under this identity.
-- Lock: none.
-- Zero rows: this content was not taken under this identity.
select r.run_id, r.epoch, r.finished_at, r.outcome, r.touched
from pgonce.run as r
where r.digest = %(digest)s::text and r.job = %(job)s::text and r.kind = %(kind)s::text
    and r.source = %(source)s::text and r.version = %(version)s::integer and r.reading = %(reading)s::jsonb
