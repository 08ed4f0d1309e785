-- Name the transaction that is open, to see before COMMIT that it is still the one that was begun.
-- Lock: none.
-- Zero rows: never.
select pg_current_xact_id()::text, set_config('synchronous_commit', 'on', true)
