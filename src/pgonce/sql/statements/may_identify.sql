-- Look whether the role may ask the server who it is: a provider may have revoked that.
-- Lock: none.
-- Zero rows: never.
select
    has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')
    and has_function_privilege('pg_catalog.pg_current_wal_lsn()', 'EXECUTE')
    and has_function_privilege('pg_catalog.pg_walfile_name(pg_catalog.pg_lsn)', 'EXECUTE') as may,
    gen_random_uuid()::text as once
