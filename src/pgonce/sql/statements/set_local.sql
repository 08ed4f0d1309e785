-- Bound the open transaction and make its commit durable, whatever role, database or pool say.
-- Lock: none.
-- Zero rows: never; one row: is this a standby, is the session a replica by setting; the rest is what was set.
select
    pg_is_in_recovery() as in_recovery,
    current_setting('session_replication_role') as replication_role,
    set_config('synchronous_commit', 'on', true),
    set_config('standard_conforming_strings', 'on', true),
    set_config('statement_timeout', %(statement_ms)s::text, true),
    set_config('lock_timeout', %(statement_ms)s::text, true),
    set_config('idle_in_transaction_session_timeout', %(transaction_ms)s::text, true),
    case
        when current_setting('server_version_num')::integer >= 170000
            then set_config('transaction_timeout', %(transaction_ms)s::text, true)
    end,
    case
        when version() like '%%linux%%' then set_config('client_connection_check_interval', %(check_ms)s::text, true)
    end
