-- Find how effects refer to their events: `row`, a foreign key, or `set`, the check of all rows of a statement.
-- Lock: none.
-- Zero rows: neither is there.
select case when k.oid is not null then 'row' else 'set' end as kind
from pg_catalog.pg_namespace as n
join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = 'effect'
left join pg_catalog.pg_constraint as k on k.conrelid = c.oid and k.conname = 'effect_event_fkey'
left join pg_catalog.pg_trigger as g on g.tgrelid = c.oid and g.tgname = 'effect_reference'
where n.nspname = %(schema)s::text and (k.oid is not null or g.oid is not null)
