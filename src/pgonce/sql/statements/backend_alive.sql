-- Look whether a backend still lives: same pid and, where the role may see it, same start.
-- Lock: none.
-- Zero rows: it is gone.
select 1
from pg_catalog.pg_stat_activity as a
where a.pid = %(pid)s::integer and coalesce(a.backend_start, %(started)s::timestamptz) = %(started)s::timestamptz
