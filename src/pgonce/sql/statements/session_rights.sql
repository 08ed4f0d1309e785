-- Read what the role may do, and what the database can hold.
-- Lock: none.
-- Zero rows: never.
select
    current_setting('server_version_num')::integer as version,
    getdatabaseencoding() as encoding,
    has_database_privilege(current_database(), 'TEMP') as temporary,
    array(
        select c.relname::text
        from pg_catalog.pg_class as c
        where c.relnamespace = %(namespace)s::oid and c.relkind in ('r', 'p')
            and not has_table_privilege(c.oid, 'SELECT')
        order by 1
    ) as unreadable,
    array(
        select c.relname::text
        from pg_catalog.pg_class as c
        where c.relnamespace = %(namespace)s::oid and c.relkind in ('r', 'p')
            and c.relname in ('job', 'definition', 'run', 'start', 'event', 'effect', 'finding', 'event_history')
            and not has_table_privilege(c.oid, 'INSERT')
        order by 1
    ) as unwritable
