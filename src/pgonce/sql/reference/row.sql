-- The reference from an effect to its event as a foreign key, checked row by row.
drop trigger if exists effect_reference on pgonce.effect;

alter table pgonce.effect
    add constraint effect_event_fkey foreign key (job, source, event_id) references pgonce.event (job, source, event_id);
