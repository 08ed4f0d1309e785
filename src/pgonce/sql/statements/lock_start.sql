-- Lock a start's row and read its position: how an in-doubt commit is resolved, and how a take-over begins.
-- Lock: `for no key update` on the start's row; waits until a chunk that is being committed has ended.
-- Zero rows: no such start; after acknowledged commits were lost it may never have been.
select s.token, s.position, s.lines, s.digest, s.chunks, s.replay, s.input_name, s.owner, s.backend_pid, s.backend_start,
    s.started_at, s.moved_at, s.ended_at, s.ended_how, extract(epoch from clock_timestamp() - s.moved_at)::float8 as silent_s
from pgonce.start as s
where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer
for no key update of s
