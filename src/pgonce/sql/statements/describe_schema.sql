-- Describe what stands in the schema: tables, columns, constraints, indexes, triggers and functions, a row each.
-- Run with the schema alone in the search path, so that no name in it is qualified.
-- Lock: none.
-- Zero rows: the schema is not there, or is empty.
select 'table' as kind, c.relname::text as owner, c.relname::text as name, concat_ws(
    ' ',
    case c.relkind when 'r' then 'ordinary' when 'p' then 'partitioned' else 'of kind ' || c.relkind::text end,
    case c.relpersistence when 'p' then 'logged' when 'u' then 'unlogged' else 'temporary' end,
    case when c.relrowsecurity then 'with row security' end,
    case when c.relforcerowsecurity then 'forced' end,
    case when exists (
        select 1 from pg_catalog.pg_rewrite as r where r.ev_class = c.oid
    ) then 'with rules' end
) as definition
from pg_catalog.pg_class as c
where c.relnamespace = %(namespace)s::oid and c.relkind in ('r', 'p', 'v', 'm', 'f')
union all
select 'column', c.relname::text, a.attname::text, concat_ws(
    ' ',
    format_type(a.atttypid, a.atttypmod),
    case when a.attcollation <> t.typcollation then 'collate ' || quote_ident(o.collname) end,
    case when a.attnotnull then 'not null' end,
    case a.attidentity when 'a' then 'identity always' when 'd' then 'identity by default' end,
    case when a.attgenerated <> '' then 'generated' end,
    'default ' || pg_get_expr(d.adbin, d.adrelid, true)
)
from pg_catalog.pg_class as c
join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_catalog.pg_type as t on t.oid = a.atttypid
left join pg_catalog.pg_collation as o on o.oid = a.attcollation
left join pg_catalog.pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where c.relnamespace = %(namespace)s::oid and c.relkind in ('r', 'p')
union all
select 'constraint', c.relname::text, k.conname::text, pg_get_constraintdef(k.oid, true)
from pg_catalog.pg_class as c
join pg_catalog.pg_constraint as k on k.conrelid = c.oid and k.contype <> 'n'
where c.relnamespace = %(namespace)s::oid
union all
select 'index', c.relname::text, n.relname::text, concat_ws(
    ' ',
    pg_get_indexdef(i.indexrelid, 0, true),
    case when not i.indisvalid then '(invalid)' end,
    case when not i.indisready then '(not ready)' end
)
from pg_catalog.pg_class as c
join pg_catalog.pg_index as i on i.indrelid = c.oid
join pg_catalog.pg_class as n on n.oid = i.indexrelid
where c.relnamespace = %(namespace)s::oid
union all
select 'trigger', c.relname::text, g.tgname::text, concat_ws(
    ' ',
    pg_get_triggerdef(g.oid, true),
    case g.tgenabled when 'A' then '(always)' when 'D' then '(disabled)' when 'R' then '(on replicas only)' end
)
from pg_catalog.pg_class as c
join pg_catalog.pg_trigger as g on g.tgrelid = c.oid and not g.tgisinternal
where c.relnamespace = %(namespace)s::oid
union all
select 'function', '', p.oid::regprocedure::text, concat_ws(
    ' ',
    'returns ' || format_type(p.prorettype, null),
    'language ' || l.lanname,
    case p.provolatile when 'i' then 'immutable' when 's' then 'stable' end,
    case when p.prosecdef then 'security definer' end,
    'set ' || array_to_string(p.proconfig, ', '),
    'source ' || md5(replace(p.prosrc, %(qualifier)s::text, %(plain)s::text))
)
from pg_catalog.pg_proc as p
join pg_catalog.pg_language as l on l.oid = p.prolang
where p.pronamespace = %(namespace)s::oid
order by 1, 2, 3
