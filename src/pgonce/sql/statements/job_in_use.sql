-- Say whether anything of a job was settled, or may be yet: a committed chunk, a start that has not ended, an event.
-- Lock: none; the runs are locked already.
-- Zero rows: never.
select
    exists (
        select
        from pgonce.start as s
        join pgonce.run as r on r.run_id = s.run_id
        where r.job = %(job)s::text and (s.chunks > 0 or s.ended_at is null)
    )
    or exists (
        select
        from pgonce.event as e
        where e.job = %(job)s::text
    )
