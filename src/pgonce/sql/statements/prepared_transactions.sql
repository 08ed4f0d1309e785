-- Find prepared transactions that hold locks on pgonce's tables: they hold them until somebody ends them by name.
-- Lock: none.
-- Zero rows: there are none.
select p.gid, p.owner::text, p.prepared, string_agg(distinct c.relname::text, ', ' order by c.relname::text)
from pg_catalog.pg_prepared_xacts as p
join pg_catalog.pg_locks as t on t.locktype = 'transactionid' and t.transactionid = p.transaction
    and t.mode = 'ExclusiveLock' and t.pid is null
join pg_catalog.pg_locks as l on l.virtualtransaction = t.virtualtransaction and l.pid is null
join pg_catalog.pg_class as c on c.oid = l.relation and c.relnamespace = %(namespace)s::oid
where p.database = current_database()
group by p.gid, p.owner, p.prepared
order by p.prepared
