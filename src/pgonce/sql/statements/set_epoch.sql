-- Hand a locked run to its next start.
-- Lock: the run's row, held already.
-- Zero rows: the run was not at the epoch that was read under its lock.
update pgonce.run as r
set epoch = %(epoch)s::integer
where r.run_id = %(run_id)s::bigint and r.epoch = %(epoch)s::integer - 1
returning r.epoch
