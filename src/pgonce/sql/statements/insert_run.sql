-- Register a run over a content. A second one that registers the same waits here, and then finds the first.
-- Lock: the inserted keys.
-- Zero rows: it is registered already; read it in a statement of its own.
insert into pgonce.run (job, version, kind, source, digest, reading, input_bytes)
values (
    %(job)s::text, %(version)s::integer, %(kind)s::text, %(source)s::text, %(digest)s::text, %(reading)s::jsonb,
    %(input_bytes)s::bigint
)
on conflict (digest, job, kind, source, version, reading) do nothing
returning run_id
