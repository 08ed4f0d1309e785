-- Fix the columns of the payload, once, by the first input that is read with this definition.
-- Lock: the definition's row; the job's row is held already.
-- Zero rows: always; it returns none.
update pgonce.definition as d
set spec = %(spec)s::jsonb
where d.job = %(job)s::text and d.version = %(version)s::integer and d.spec ->> 'columns' is null
