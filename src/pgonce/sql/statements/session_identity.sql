-- Say who serves this connection: a backend's pid and start name it as long as it lives.
-- Run outside a transaction of ours, so everything is qualified, operators too.
-- Lock: none.
-- Zero rows: the role may not see its own backend; then it is treated as pooled.
select a.pid, a.backend_start, pg_catalog.current_setting('server_version_num')::integer
from pg_catalog.pg_stat_activity as a
where a.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid()
