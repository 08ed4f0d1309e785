-- Bound the open transaction, make its commit durable, resolve names in the catalogue alone, and read and write values in
-- the one form that the driver knows, whatever role, database or pool say. Everything here is qualified, operators too:
-- the path that is still in force is not ours.
-- Lock: none.
-- Zero rows: never; one row: is this a standby, is the session a replica by setting, may the role make temporary tables;
-- the rest is what was set.
select
    pg_catalog.pg_is_in_recovery() as in_recovery,
    pg_catalog.current_setting('session_replication_role') as replication_role,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMP') as may_use_temp,
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
    pg_catalog.set_config('synchronous_commit', 'on', true),
    pg_catalog.set_config('standard_conforming_strings', 'on', true),
    pg_catalog.set_config('DateStyle', 'ISO', true),
    pg_catalog.set_config('array_nulls', 'on', true),
    pg_catalog.set_config('client_min_messages', 'warning', true),
    pg_catalog.set_config('statement_timeout', %(statement_ms)s::pg_catalog.text, true),
    pg_catalog.set_config('lock_timeout', %(lock_ms)s::pg_catalog.text, true),
    pg_catalog.set_config('idle_in_transaction_session_timeout', %(transaction_ms)s::pg_catalog.text, true),
    -- A timer that runs already, by a setting of the role, is only replaced after it was turned off.
    case
        when pg_catalog.current_setting('server_version_num')::integer operator(pg_catalog.>=) 170000
            then pg_catalog.set_config('transaction_timeout', '0', true)
    end,
    case
        when pg_catalog.current_setting('server_version_num')::integer operator(pg_catalog.>=) 170000
            then pg_catalog.set_config('transaction_timeout', %(transaction_ms)s::pg_catalog.text, true)
    end,
    case
        when pg_catalog.version() operator(pg_catalog.~~) '%%linux%%'
            then pg_catalog.set_config('client_connection_check_interval', %(check_ms)s::pg_catalog.text, true)
    end
