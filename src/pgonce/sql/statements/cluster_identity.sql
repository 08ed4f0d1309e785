-- Name the database as it is now: its cluster, its oid, and the timeline, which a restore or failover changes.
-- Lock: none.
-- Zero rows: never.
select concat_ws('/', c.system_identifier, d.oid, substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))
from pg_catalog.pg_database as d
cross join pg_catalog.pg_control_system() as c
where d.datname = current_database()
