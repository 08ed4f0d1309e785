-- Store a version of a job's definition.
-- Lock: the inserted key.
-- Zero rows: always; it returns none. A version that is stored never changes.
insert into pgonce.definition (job, version, spec, who, why)
values (%(job)s::text, %(version)s::integer, %(spec)s::jsonb, %(who)s::text, %(why)s::text)
on conflict (job, version) do nothing
