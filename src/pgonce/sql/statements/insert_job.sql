-- Register a job at its first run. A second one that does the same waits here and finds the first.
-- Lock: the inserted key.
-- Zero rows: always; it returns none.
insert into pgonce.job (job, version)
values (%(job)s::text, 1)
on conflict (job) do nothing
