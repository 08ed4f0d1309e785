-- Find sessions that hold a transaction open without working in it: nothing that changed since can be vacuumed.
-- Lock: none.
-- Zero rows: there are none, or the role may not see them.
select a.pid, a.usename::text, a.application_name, a.xact_start, age(a.backend_xmin)
from pg_catalog.pg_stat_activity as a
where a.datname = current_database() and a.state like 'idle in transaction%%'
    and a.xact_start < clock_timestamp() - make_interval(secs => %(idle_s)s::float8)
order by a.xact_start
