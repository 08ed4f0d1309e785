-- Resolve names in the catalogue alone again, and read dates in the one form that the driver knows; and COMMIT durably,
-- whatever a function of the user has set; and hear what the server has to say about COMMIT.
-- Lock: none.
-- Zero rows: never; one row: did the user leave temporary relations, beside the relation `chunk`; the rest is what was
-- set.
select
    exists (
        select from pg_catalog.pg_class as c
        where c.relnamespace operator(pg_catalog.=) pg_catalog.pg_my_temp_schema()
            and c.relkind operator(pg_catalog.=) any (array['r', 'v', 'S', 'p']::"char"[])
            and c.relname operator(pg_catalog.<>) 'chunk'
    ) as left_behind,
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('DateStyle', 'ISO', true),
    pg_catalog.set_config('synchronous_commit', 'on', true),
    pg_catalog.set_config('client_min_messages', 'warning', true)
