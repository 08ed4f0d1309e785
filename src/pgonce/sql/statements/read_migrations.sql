-- Read which migrations were applied, and the hash of the SQL they were applied with.
-- Lock: none.
-- Zero rows: none was.
select m.version, m.sha256
from pgonce.migration as m
order by m.version
