-- Finish a run whose input is settled to the end, with the outcome counted from its committed rows.
-- Lock: the run's row.
-- Zero rows: another start took over.
update pgonce.run as r
set finished_at = coalesce(r.finished_at, clock_timestamp()), outcome = %(outcome)s::jsonb, touched = false
where r.run_id = %(run_id)s::bigint and r.epoch = %(epoch)s::integer
returning r.finished_at
