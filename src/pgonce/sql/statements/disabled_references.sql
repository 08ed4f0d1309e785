-- Find foreign keys whose own triggers are switched off, on either side: they stand in the catalogue and hold nothing.
-- Lock: none.
-- Zero rows: every foreign key holds.
select c.relname::text, k.conname::text
from pg_catalog.pg_class as c
join pg_catalog.pg_trigger as g on g.tgrelid = c.oid and g.tgisinternal and g.tgenabled in ('D', 'R')
join pg_catalog.pg_constraint as k on k.oid = g.tgconstraint
where c.relnamespace = %(namespace)s::oid
group by c.relname, k.conname
order by 1, 2
