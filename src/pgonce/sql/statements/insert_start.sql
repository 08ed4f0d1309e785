-- Begin a start with the next epoch, at the position where the one before it ended.
-- Lock: the inserted key.
-- Zero rows: never.
insert into pgonce.start (
    run_id, epoch, replay, checkpoint, input_name, owner, backend_pid, backend_start, position, lines, digest
)
values (
    %(run_id)s::bigint, %(epoch)s::integer, %(replay)s::boolean, %(checkpoint)s::text, %(input_name)s::text,
    %(owner)s::text, %(backend_pid)s::integer, %(backend_start)s::timestamptz, %(position)s::bigint, %(lines)s::bigint,
    %(digest)s::text
)
returning token
