"""What there is to compare in a database: its tables, columns, keys and references, and a digest of its schema."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

TABLES = """
select c.oid::bigint, n.nspname, c.relname, c.relkind::text
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'm') and c.relpersistence <> 't'
  and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast') and n.nspname !~ '^pg_(temp|toast_temp)_'
  and (c.relkind = 'r' or c.relispopulated)
  and not exists (select 1 from pg_depend as d where d.classid = 'pg_class'::regclass and d.objid = c.oid
                  and d.deptype = 'e')
order by n.nspname, c.relname
"""

COLUMNS = """
select a.attrelid::bigint, a.attname, a.attnum::integer,
       t.typcategory = 'N' and t.typname in ('int2', 'int4', 'int8', 'numeric', 'float4', 'float8', 'money'),
       a.attidentity <> '' or coalesce(pg_get_expr(d.adbin, d.adrelid) ~* $$nextval\\(|uuid|ulid|nanoid$$, false),
       format_type(a.atttypid, a.atttypmod),
       exists (select from pg_index as i where i.indrelid = a.attrelid and i.indisunique and i.indisvalid
               and i.indpred is null and i.indnkeyatts = 1 and i.indkey[0] = a.attnum)
from pg_attribute as a
join pg_type as t on t.oid = a.atttypid
left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.attgenerated = ''
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
"""

REFERENCES = """
select conrelid::bigint, confrelid::bigint, conkey::integer[], confkey::integer[]
from pg_constraint
where contype = 'f' and conrelid = any(%s::oid[]) and confrelid = any(%s::oid[])
order by conrelid, conname
"""

# Names, types, defaults, constraints, indexes, triggers, functions, views, sequences' shapes, privileges and policies.
SCHEMA_PARTS = r"""
with space as (
  select oid, nspname, nspacl from pg_namespace
  where nspname not in ('pg_catalog', 'information_schema', 'pg_toast') and nspname !~ '^pg_(temp|toast_temp)_'
), relation as (
  select c.*, s.nspname from pg_class as c join space as s on s.oid = c.relnamespace
  where c.relpersistence <> 't' and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
)
select concat('schema ', nspname), concat(nspacl) from space
union all
select concat('relation ', nspname, '.', relname),
       concat(relkind, relpersistence, relacl, relrowsecurity, array_to_string(reloptions, ',')) from relation
union all
select concat('column ', r.nspname, '.', r.relname, '.', a.attname),
       concat(format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
              pg_get_expr(d.adbin, d.adrelid))
from relation as r join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef as d on d.adrelid = r.oid and d.adnum = a.attnum
where r.relkind <> 'S'
union all
select concat('constraint ', r.nspname, '.', r.relname, '.', c.conname),
       concat(pg_get_constraintdef(c.oid), c.convalidated)
from relation as r join pg_constraint as c on c.conrelid = r.oid
union all
select concat('index ', r.nspname, '.', i.relname), concat(pg_get_indexdef(i.oid), x.indisvalid)
from relation as r join pg_index as x on x.indrelid = r.oid join pg_class as i on i.oid = x.indexrelid
union all
select concat('trigger ', r.nspname, '.', r.relname, '.', t.tgname), concat(pg_get_triggerdef(t.oid), t.tgenabled)
from relation as r join pg_trigger as t on t.tgrelid = r.oid and not t.tgisinternal
union all
select concat('policy ', r.nspname, '.', r.relname, '.', p.polname),
       concat(pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
from relation as r join pg_policy as p on p.polrelid = r.oid
union all
select concat('view ', nspname, '.', relname), pg_get_viewdef(oid) from relation where relkind in ('v', 'm')
union all
select concat('function ', p.oid::regprocedure), concat(p.prosrc, pg_get_function_sqlbody(p.oid), p.proacl)
from pg_proc as p join space as s on s.oid = p.pronamespace
where not exists (select 1 from pg_depend as d where d.objid = p.oid and d.deptype = 'e')
union all
select concat('enum ', s.nspname, '.', t.typname, '.', e.enumlabel), ''
from pg_enum as e join pg_type as t on t.oid = e.enumtypid join space as s on s.oid = t.typnamespace
union all
select concat('extension ', extname), extversion from pg_extension
union all
select 'large objects', count(*)::text from pg_largeobject_metadata
order by 1, 2
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: whether its values can be summed, whether the server makes them up, whether each one is there once."""

    name: str
    number: int
    is_number: bool
    is_generated: bool
    type: str = ""
    is_unique: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key, or what serves as one: columns here, and the table and columns they point to."""

    columns: tuple[str, ...]
    target: str
    target_columns: tuple[str, ...]
    is_declared: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table with rows of its own; ``name`` is schema and table as a person writes them."""

    schema: str
    relation: str
    columns: tuple[Column, ...]
    references: tuple[Reference, ...] = ()

    @property
    def name(self) -> str:
        """Return the name; the schema is left out where nobody would write it."""
        return self.relation if self.schema == "public" else f"{self.schema}.{self.relation}"


Catalogue = dict[str, Table]


def read_catalogue(connection: psycopg.Connection) -> Catalogue:
    """Read every table that a user of this database made, by its name."""
    found = connection.execute(TABLES.encode()).fetchall()
    oids = [row[0] for row in found]
    columns: dict[int, list[Column]] = {}
    for oid, *column in connection.execute(COLUMNS.encode(), (oids,)):
        columns.setdefault(oid, []).append(Column(*column))
    bare = {oid: Table(schema, name, tuple(columns.get(oid, ()))) for oid, schema, name, _ in found}
    references: dict[int, list[Reference]] = {}
    for oid, target, keys, target_keys in connection.execute(REFERENCES.encode(), (oids, oids)):
        named = tuple(_column_name(bare[oid], number) for number in keys)
        pointed = tuple(_column_name(bare[target], number) for number in target_keys)
        references.setdefault(oid, []).append(Reference(named, bare[target].name, pointed))
    tables = (
        Table(table.schema, table.relation, table.columns, tuple(references.get(oid, ())))
        for oid, table in bare.items()
    )
    return {table.name: table for table in tables}


def read_schema(connection: psycopg.Connection) -> dict[str, str]:
    """Describe everything in the database that is not a row, part by part."""
    parts: dict[str, str] = {}
    for name, text in connection.execute(SCHEMA_PARTS.encode()):
        parts[name] = f"{parts[name]}; {text}" if name in parts else text
    return parts


def _column_name(table: Table, number: int) -> str:
    return next(column.name for column in table.columns if column.number == number)
