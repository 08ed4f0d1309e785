-- Find starts that have not ended and whose backend is gone, or that are silent behind a pooler.
-- Lock: none.
-- Zero rows: there are none.
select r.job, s.run_id, s.epoch, s.owner, s.input_name, s.moved_at
from pgonce.start as s
join pgonce.run as r on r.run_id = s.run_id and r.epoch = s.epoch
where s.ended_at is null and case
    when s.backend_pid is null then s.moved_at < clock_timestamp() - make_interval(secs => %(silent_s)s::float8)
    else not exists (
        select 1
        from pg_catalog.pg_stat_activity as a
        where a.pid = s.backend_pid and coalesce(a.backend_start, s.backend_start) = s.backend_start
    )
end
order by s.moved_at
limit %(most)s::integer
