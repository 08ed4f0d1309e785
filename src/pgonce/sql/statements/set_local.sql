-- Bound the open transaction and make its commit durable, whatever role, database or pool say.
-- Lock: none.
-- Zero rows: never; one row: is this a standby, is the session a replica by setting, who serves it.
select
    set_config('synchronous_commit', 'on', true) as durable,
    set_config('statement_timeout', %(statement_ms)s::text, true) as statement_ms,
    set_config('lock_timeout', %(lock_ms)s::text, true) as lock_ms,
    set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, true) as idle_ms,
    case
        when version() like '%%linux%%' then set_config('client_connection_check_interval', %(check_ms)s::text, true)
    end as check_ms,
    pg_is_in_recovery() as in_recovery,
    current_setting('session_replication_role') as replication_role,
    pg_backend_pid() as backend_pid
