-- Find runs whose newest start has not ended: it is at work, or gone without a word.
-- Lock: none.
-- Zero rows: every start has ended.
select r.run_id
from pgonce.run as r
join pgonce.start as s on s.run_id = r.run_id and s.epoch = r.epoch
where s.ended_at is null
order by r.run_id
