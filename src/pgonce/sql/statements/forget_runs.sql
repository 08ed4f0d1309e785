-- Give up runs of which nothing was settled; a start that is still there would refuse it.
-- Lock: the deleted rows, held already.
-- Zero rows: always; it returns none.
delete from pgonce.run as r
where r.run_id = any(%(run_ids)s::bigint[])
