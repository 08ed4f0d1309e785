-- The reference from an effect to its event is checked once a statement instead of once a row, and checks more: the event
-- is completed, was not adopted, and has the same amount. `pgonce db migrate --reference row` puts the foreign key back.

-- A default that is the same for all rows of a statement: COPY writes rows one by one where a default is volatile.
alter table pgonce.event alter column recorded_at set default statement_timestamp();

-- The events of a chunk stand side by side in their key's index when the chunk's ids do. Then its stretch of the index is
-- read once, twice as many rows as there are effects at most; else, and to find what is missing, each key is looked up.
-- What it sees stays so until COMMIT and after it: the guards refuse every delete of an event, and every change of what
-- is completed. The settings make the plans depend on the indexes alone, whatever was analysed, and names and operators
-- on the catalogue.
create function pgonce.check_reference() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_nestloop = off
set jit = off
as $body$
declare
    few constant integer := 64;
    first record;
    span record;
    ahead text;
    held bigint;
    missing record;
begin
    select i.job, i.source into first from inserted as i limit 1;
    select
        count(*) as rows, count(*) filter (where i.job = first.job and i.source = first.source) as alike,
        min(i.event_id) as low, max(i.event_id) as high
    into span from inserted as i;
    if span.rows > few and span.alike = span.rows then
        select e.event_id into ahead from pgonce.event as e
        where e.job = first.job and e.source = first.source and e.event_id >= span.low
        order by e.event_id offset few limit 1;
        if ahead is null or (select i.event_id <= ahead from inserted as i offset few / 2 limit 1) then
            select count(*) into held
            from (
                select s.event_id, s.status, s.adopted, s.amount_cents from pgonce.event as s
                where s.job = first.job and s.source = first.source and s.event_id between span.low and span.high
                order by s.event_id limit 2 * span.rows
            ) as e
            join inserted as i on i.event_id = e.event_id
            where e.status = 'completed' and not e.adopted and e.amount_cents = i.amount_cents;
            if held = span.rows then
                return null;
            end if;
        end if;
    end if;
    select i.job, i.source, i.event_id, i.amount_cents, e.status, e.adopted, e.amount_cents as event_cents
    into missing
    from inserted as i
    left join lateral (
        select s.status, s.adopted, s.amount_cents from pgonce.event as s
        where s.job = i.job and s.source = i.source and s.event_id = i.event_id
        offset 0
    ) as e on true
    where (e.status = 'completed' and not e.adopted and e.amount_cents = i.amount_cents) is not true
    limit 1;
    if found then
        raise exception using
            errcode = '23503',
            message = format(
                'insert on table "effect" violates reference "effect_reference": event (%s, %s, %s) %s',
                missing.job, missing.source, missing.event_id,
                case
                    when missing.status is null then 'is not there'
                    when missing.status <> 'completed' then 'is ' || missing.status
                    when missing.adopted then 'was adopted, it has no effect'
                    else format('has the amount %s, not %s', missing.event_cents, missing.amount_cents)
                end
            ),
            schema = tg_table_schema, table = tg_table_name, constraint = tg_name;
    end if;
    return null;
end
$body$;

create trigger effect_reference after insert on pgonce.effect
    referencing new table as inserted
    for each statement execute function pgonce.check_reference();

alter table pgonce.effect enable always trigger effect_reference;

alter table pgonce.effect drop constraint effect_event_fkey;

-- `event_final` once more, when the row is made: what a trigger of somebody else did to it on its way is seen as well.
create trigger event_final_made after update on pgonce.event
    for each row when (
        (old.job, old.source, old.event_id) is distinct from (new.job, new.source, new.event_id)
        or old.status in ('completed', 'pruned') and (
            old.amount_cents is distinct from new.amount_cents
            or old.adopted is distinct from new.adopted
            or new.status not in ('completed', 'pruned')
            or new.status = 'completed' and (old.status = 'pruned' or old.payload is distinct from new.payload)
            or old.status = 'pruned' and old.fingerprint is distinct from new.fingerprint
        )
    ) execute function pgonce.refuse_change();

alter table pgonce.event enable always trigger event_final_made;
