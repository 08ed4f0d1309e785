-- Give up starts that have ended without a committed chunk.
-- Lock: the deleted rows; their runs are locked already.
-- Zero rows: always; it returns none.
delete from pgonce.start as s
where s.run_id = any(%(run_ids)s::bigint[]) and s.chunks = 0 and s.ended_at is not null
