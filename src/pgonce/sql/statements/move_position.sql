-- Move the position of a run past a chunk, by compare-and-set on what this start last saw committed.
-- Lock: the start's row, until COMMIT.
-- Zero rows: another start took over, or acknowledged commits are gone: nothing of this chunk may be committed.
update pgonce.start as s
set position = %(position)s::bigint, lines = %(lines)s::bigint, digest = %(digest)s::text, chunks = s.chunks + 1,
    rows_read = s.rows_read + %(rows_read)s::bigint,
    cents_read = s.cents_read + %(cents_read)s::numeric,
    already = s.already + %(already)s::bigint,
    already_cents = s.already_cents + %(already_cents)s::numeric,
    failed_again = s.failed_again + %(failed_again)s::bigint,
    failed_again_cents = s.failed_again_cents + %(failed_again_cents)s::numeric,
    pending_again = s.pending_again + %(pending_again)s::bigint,
    pending_again_cents = s.pending_again_cents + %(pending_again_cents)s::numeric,
    late = s.late + %(late)s::bigint,
    late_cents = s.late_cents + %(late_cents)s::numeric,
    backend_pid = %(backend_pid)s::integer, backend_start = %(backend_start)s::timestamptz,
    moved_at = clock_timestamp()
where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer and s.token = %(token)s::uuid
    and s.chunks = %(chunks)s::bigint and s.position = %(from_position)s::bigint and s.ended_at is null
returning s.chunks
