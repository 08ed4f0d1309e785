-- The experiment's tables and its one function, which applies an event or says why not.
-- The job's row is locked first and looked at afterwards: whoever comes second waits for the first one's commit and then
-- sees what it left. 'running' is written inside the transaction only, so nobody else ever sees it.
create table wiki_lab.batch_jobs (
    event_id integer primary key,
    amount integer not null,
    status text not null check (status in ('pending', 'running', 'completed', 'failed'))
);
create table wiki_lab.batch_effects (
    event_id integer primary key references wiki_lab.batch_jobs (event_id),
    amount integer not null check (amount >= 0)
);
create function wiki_lab.apply_event(id integer, payload integer, fault text, delay double precision) returns text
language plpgsql as $$
declare
    stored_amount integer;
    stored_status text;
begin
    select j.amount, j.status into strict stored_amount, stored_status
        from wiki_lab.batch_jobs as j where j.event_id = id for update;
    if stored_amount <> payload then
        raise sqlstate '22000' using message = format('event %s is stored with %s, not %s', id, stored_amount, payload);
    end if;
    case
        when stored_status = 'completed' then return 'already';
        when stored_status = 'failed' then return 'failed';
        when payload < 0 then
            update wiki_lab.batch_jobs as j set status = 'failed' where j.event_id = id;
            return 'failed';
        else
            update wiki_lab.batch_jobs as j set status = 'running' where j.event_id = id;
    end case;
    perform pg_sleep(delay);
    if fault = 'before_write' then
        raise sqlstate '40001' using message = 'injected before the effect';
    end if;
    insert into wiki_lab.batch_effects (event_id, amount) values (id, payload);
    if fault = 'after_write' then
        raise sqlstate '40001' using message = 'injected after the effect';
    end if;
    update wiki_lab.batch_jobs as j set status = 'completed' where j.event_id = id;
    return 'applied';
end
$$;
