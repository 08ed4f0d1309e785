-- Look which relation the user's SQL means by `chunk`, and whether it is the one that was made for it.
-- Lock: none.
-- Zero rows: never.
select pg_catalog.to_regclass('chunk')::pg_catalog.oid operator(pg_catalog.=) made.oid as same,
    n.nspname::pg_catalog.text as schema
from (select pg_catalog.to_regclass(%(made)s::pg_catalog.text)::pg_catalog.oid as oid) as made
left join pg_catalog.pg_class as c on c.oid operator(pg_catalog.=) pg_catalog.to_regclass('chunk')::pg_catalog.oid
left join pg_catalog.pg_namespace as n on n.oid operator(pg_catalog.=) c.relnamespace
