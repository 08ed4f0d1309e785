-- Read a start's row as it stands.
-- Lock: none.
-- Zero rows: no such start.
select s.token, s.position, s.lines, s.digest, s.chunks, s.replay, s.input_name, s.owner, s.backend_pid, s.backend_start,
    s.started_at, s.moved_at, s.ended_at, s.ended_how, extract(epoch from clock_timestamp() - s.moved_at)::float8 as silent_s
from pgonce.start as s
where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer
