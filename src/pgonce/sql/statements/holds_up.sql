-- Say whether one of these backends waits for the open transaction, straight or through others that wait for it.
-- Lock: none.
-- Zero rows: never.
with recursive blocker (pid) as (
    select unnest(pg_blocking_pids(earlier.pid)) from unnest(%(pids)s::integer[]) as earlier (pid)
    union
    select unnest(pg_blocking_pids(blocker.pid)) from blocker
)
select exists (select from blocker where blocker.pid = pg_backend_pid())
