-- Resolve names and read dates as the user's own sessions do, with pgonce's schema behind the user's path if the relation
-- `chunk` stands there.
-- Lock: none.
-- Zero rows: never; two rows: the path and the style of dates.
select set_config(
    s.name,
    case s.name
        when 'search_path' then concat_ws(', ', nullif(s.reset_val, ''), nullif(%(behind)s::text, ''))
        else s.reset_val
    end,
    true
)
from pg_catalog.pg_settings as s
where s.name in ('search_path', 'DateStyle')
