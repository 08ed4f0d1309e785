-- Name the transaction that is open, to see before COMMIT that it is still the one that was begun; and how it replicates.
-- Lock: none.
-- Zero rows: never.
select pg_current_xact_id()::text || '/' || current_setting('session_replication_role')
