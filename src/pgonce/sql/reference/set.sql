-- The reference from an effect to its event as a check of all rows of a statement at once.
alter table pgonce.effect drop constraint if exists effect_event_fkey;

create trigger effect_reference after insert on pgonce.effect
    referencing new table as inserted
    for each statement execute function pgonce.check_reference();

alter table pgonce.effect enable always trigger effect_reference;
