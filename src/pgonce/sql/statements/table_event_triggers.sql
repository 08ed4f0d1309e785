-- Name the event triggers that fire where a table is made, as the relation `chunk` is.
-- Lock: none.
-- Zero rows: there are none.
select g.evtname::text as name
from pg_catalog.pg_event_trigger as g
where g.evtenabled <> 'D' and g.evtevent in ('ddl_command_start', 'ddl_command_end')
    and (g.evttags is null or g.evttags && array['CREATE TABLE', 'CREATE TABLE AS'])
order by 1
