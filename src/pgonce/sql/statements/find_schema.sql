-- Find the schema's oid, which the catalogue calls its contents by.
-- Lock: none.
-- Zero rows: there is no such schema.
select n.oid
from pg_catalog.pg_namespace as n
where n.nspname = %(schema)s::text
