-- Note on finished runs that they balance in the database as it is now: their first answer may be repeated again.
-- Lock: the runs' rows.
-- Zero rows: none of them was finished in another database, or their outcome changed meanwhile.
update pgonce.run as r
set outcome = jsonb_set(r.outcome, '{cluster}', to_jsonb(%(cluster)s::text))
where r.run_id = any(%(run_ids)s::bigint[]) and r.finished_at is not null and r.outcome is not null
    and r.outcome ->> 'cluster' is distinct from %(cluster)s::text
returning r.run_id
