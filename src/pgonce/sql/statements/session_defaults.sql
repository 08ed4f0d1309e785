-- Read what the server, the database and the role set for a session, whatever this transaction has set for itself.
-- Lock: none.
-- Zero rows: never.
select s.name, s.reset_val
from pg_catalog.pg_settings as s
where s.name in ('synchronous_commit', 'fsync', 'full_page_writes', 'row_security')
order by s.name
