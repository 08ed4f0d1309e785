-- Name the triggers on the tables that a chunk is stored in which are not pgonce's own.
-- Lock: none.
-- Zero rows: there are none.
select t.tgname::text || ' on ' || n.nspname || '.' || c.relname as name
from pg_catalog.pg_trigger as t
join pg_catalog.pg_class as c on c.oid = t.tgrelid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
join pg_catalog.pg_proc as p on p.oid = t.tgfoid
where n.nspname = %(schema)s::text and c.relname in ('event', 'effect', 'event_history', 'finding')
    and not t.tgisinternal and t.tgenabled <> 'D'
    and not (p.pronamespace = n.oid and p.proname in ('refuse_change', 'check_reference'))
order by 1
