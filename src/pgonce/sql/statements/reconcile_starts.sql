-- Find starts that do not follow each other: a gap, a position that goes back, an old start that can still move, an end
-- that was not reached.
-- Lock: none.
-- Zero rows: the starts of every run are consistent.
select p.kind, w.run_id, w.epoch, w.position, w.before, w.input_bytes, w.run_epoch
from (
    select
        r.run_id, r.input_bytes, r.epoch as run_epoch, r.finished_at, s.epoch, s.position, s.ended_at,
        row_number() over (partition by r.run_id order by s.epoch) as place,
        lag(s.position) over (partition by r.run_id order by s.epoch) as before,
        lead(s.epoch) over (partition by r.run_id order by s.epoch) as next
    from pgonce.run as r
    left join pgonce.start as s on s.run_id = r.run_id
    where (%(job)s::text is null or r.job = %(job)s::text) and (%(run_id)s::bigint is null or r.run_id = %(run_id)s::bigint)
) as w
cross join lateral (
    values
        ('start_missing', w.epoch is not null and w.epoch <> w.place or w.next is null and coalesce(w.epoch, 0) <> w.run_epoch),
        ('position_went_back', w.position < w.before),
        ('position_past_input', w.position > w.input_bytes),
        ('old_start_not_ended', w.next is not null and w.ended_at is null),
        ('end_not_reached', w.finished_at is not null and w.next is null and w.position is distinct from w.input_bytes)
) as p (kind, holds)
where p.holds
order by w.run_id, w.epoch
limit %(limit)s::integer
