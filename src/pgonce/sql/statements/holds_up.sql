-- Say whether anybody waits for the open transaction, other than these backends.
-- Lock: none.
-- Zero rows: never.
select exists (
    select
    from pg_catalog.pg_locks as l
    where not l.granted and l.pid <> pg_backend_pid() and not l.pid = any(%(but)s::integer[])
        and pg_blocking_pids(l.pid) @> array[pg_backend_pid()]
)
