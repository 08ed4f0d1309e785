-- Look whether COPY may write events and effects: the server takes none where row security holds for the role, and would
-- pass over rules.
-- Lock: none.
-- Zero rows: never.
select not coalesce(bool_or(row_security_active(c.oid) or c.relhasrules), false) as allowed
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where n.nspname = %(schema)s::text and c.relname in ('event', 'effect')
