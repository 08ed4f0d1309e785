-- Find who holds the rows of a run and of a start of it: the backend whose transaction changed them and has not ended, or
-- a prepared transaction.
-- Lock: none.
-- Zero rows: nobody does any more.
select distinct l.pid, p.gid
from (
    select r.xmax as xid
    from pgonce.run as r
    where r.run_id = %(run_id)s::bigint
    union all
    select s.xmax
    from pgonce.start as s
    where s.run_id = %(run_id)s::bigint
) as x
left join pg_catalog.pg_locks as l
    on l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.transactionid = x.xid
left join pg_catalog.pg_prepared_xacts as p on p.transaction = x.xid
where l.pid is not null or p.gid is not null
order by l.pid, p.gid
