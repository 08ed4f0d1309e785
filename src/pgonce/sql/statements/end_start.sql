-- End a start: from here on it can move nothing.
-- Lock: the start's row.
-- Zero rows: it has ended before, or is another's.
update pgonce.start as s
set ended_at = clock_timestamp(), ended_how = %(how)s::text
where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer and s.ended_at is null
    and s.token = %(token)s::uuid
returning s.epoch
