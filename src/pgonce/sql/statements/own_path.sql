-- Resolve names in the catalogue alone again, and read dates in the one form that the driver knows; and COMMIT durably,
-- whatever a function of the user has set.
-- Lock: none.
-- Zero rows: never.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('DateStyle', 'ISO', true),
    pg_catalog.set_config('synchronous_commit', 'on', true)
