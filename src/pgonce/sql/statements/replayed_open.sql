-- Count the replayed rows of a run whose event was failed or pending when they were last read: by the newest start that
-- read the whole input again, if there is one.
-- Lock: none.
-- Zero rows: never.
select coalesce(
    (
        select s.failed_again + s.pending_again
        from pgonce.start as s
        where s.run_id = %(run_id)s::bigint and s.replay and s.ended_how = 'finished'
        order by s.epoch desc
        limit 1
    ),
    (
        select sum(s.failed_again + s.pending_again)
        from pgonce.start as s
        where s.run_id = %(run_id)s::bigint and not s.replay
    ),
    0
)
